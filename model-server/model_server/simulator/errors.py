"""What a client did wrong, in vLLM's words and OpenAI's form."""

import msgspec


class ApiError(Exception):
    """An error the client is told about, with the HTTP status to tell it with."""

    status = 400
    kind = "BadRequestError"

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    def body(self) -> bytes:
        """Encode the reply."""
        return error_body(self.message, self.kind, self.status, self.param)


class InvalidBody(ApiError):
    """The body is no JSON, or not of the expected form."""

    kind = "Bad Request"


class UnknownModel(ApiError):
    """No such model or adapter is served."""

    status = 404
    kind = "NotFoundError"


def error_body(message: str, kind: str, status: int, param: str | None = None) -> bytes:
    """Encode any error reply."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    return msgspec.json.encode({"error": error})
