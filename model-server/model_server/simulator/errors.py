"""The errors that clients get, in vLLM's words and OpenAI's form."""

import msgspec


class ApiError(Exception):
    """An error for the client, with its HTTP status."""

    status = 400
    kind = "BadRequestError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.headers: dict[str, str] = {}

    def body(self) -> bytes:
        """Encode the reply."""
        return error_body(self.message, self.kind, self.status, self.param)


class InvalidBody(ApiError):
    """The body is not JSON, or not of the expected form."""

    kind = "Bad Request"


class UnknownModel(ApiError):
    """No such model or adapter is served."""

    status = 404
    kind = "NotFoundError"


class UnknownResponse(ApiError):
    """No such response is kept here."""

    status = 404
    kind = "invalid_request_error"


class Overloaded(ApiError):
    """Too many requests are unfinished."""

    status = 503
    kind = "ServiceUnavailableError"

    def __init__(self, *, retry_after: bool) -> None:
        super().__init__("the queue is full")
        if retry_after:
            self.headers["Retry-After"] = "1"


def error_body(message: str, kind: str, status: int, param: str | None = None) -> bytes:
    """Encode any error reply."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return msgspec.json.encode({"error": error})
