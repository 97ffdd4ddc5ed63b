"""The responses that a server keeps in its own memory, as vLLM does if it is told to.

Knows no HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from model_server.simulator.errors import ApiError, UnknownResponse
from model_server.simulator.template import Turn


class ResponseStore:
    """Keeps responses, without end, if it is `enabled`; what comes before each of them, too."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        self._kept: dict[str, tuple[list[Turn], Mapping[str, Any]]] = {}

    def keep(self, turns: Sequence[Turn], response: Mapping[str, Any]) -> None:
        """Keep the response to a conversation."""
        if self._enabled:
            text = response["output"][0]["content"][0]["text"]
            self._kept[response["id"]] = [*turns, Turn("assistant", text)], response

    def turns(self, response_id: str | None) -> list[Turn]:
        """Return the conversation up to a response; nothing if there is none before."""
        return [] if response_id is None else self._find(response_id)[0]

    def response(self, response_id: str) -> Mapping[str, Any]:
        """Return a response."""
        return self._find(response_id)[1]

    def cancel(self, response_id: str) -> Mapping[str, Any]:
        """Refuse to cancel a response: all that are kept have ended."""
        self._find(response_id)
        raise ApiError("Cannot cancel a synchronous response.", "response_id")

    def _find(self, response_id: str) -> tuple[list[Turn], Mapping[str, Any]]:
        try:
            return self._kept[response_id]
        except KeyError:
            raise UnknownResponse(f"Response with id '{response_id}' not found.") from None
