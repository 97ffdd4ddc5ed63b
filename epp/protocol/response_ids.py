"""Ids of the responses that servers store (OpenAI's Responses API), in requests and in answers.

The ids are the servers' own: vLLM and SGLang make `resp_` and a random number, unless a client
chooses one. Whatever does not look like one is passed on, for the server to refuse.
"""

import re
from typing import Final

_ID: Final = r"[!#-.0-\[\]-~]{1,256}"
"""Printable ASCII without quotes, slashes and backslashes, and not too long."""
_IN_PATH: Final = re.compile(rf"/responses/({_ID})(?:/|$)")
_PREVIOUS: Final = b'"previous_response_id"'
_CONTINUED: Final = re.compile(rb'"previous_response_id"\s*:\s*"(%b)"' % _ID.encode())
_OBJECT: Final = (
    rb'\{\s*+(?:(?!"id"\s*:)"[^"\\]*+"\s*+:\s*+(?:"(?:[^"\\]|\\.)*+"|[^\s"{}\[\],]++)\s*+,\s*+)*+'
    rb'"id"\s*:\s*"(%b)"' % _ID.encode()
)
"""An object up to its id, which comes before all members that have members of their own."""
_WHOLE: Final = re.compile(rb"\s*+" + _OBJECT, re.DOTALL)
_EVENT: Final = re.compile(rb'"response"\s*+:\s*+' + _OBJECT, re.DOTALL)
_LONGEST: Final = 2048
"""Bytes of an answer in which an id is looked for: vLLM, SGLang and llama.cpp need a hundred."""


def id_in_path(path: str) -> str:
    """Return the id in `/v1/responses/{id}`, `/v1/responses/{id}/cancel` and the like; or ""."""
    found = _IN_PATH.search(path.partition("?")[0])
    return found[1] if found else ""


def previous_id(body: bytes) -> str:
    """Return the `previous_response_id` of a request's body; "" without a string that can be one.

    If the key comes twice the last one counts, as it does for parsers of JSON.
    """
    at = body.rfind(_PREVIOUS)
    found = _CONTINUED.match(body, at) if at >= 0 else None
    return found[1].decode() if found else ""


class ResponseIdReader:
    """Finds a response's id at the beginning of its body: as a whole, or as a stream of events.

    It is `done` once it has the id, or cannot find one any more.
    """

    __slots__ = ("_pattern", "_seen", "done")

    def __init__(self, *, streaming: bool) -> None:
        self.done = False
        self._pattern = _EVENT.search if streaming else _WHOLE.match
        self._seen = b""

    def feed(self, data: bytes) -> str:
        """Take the next bytes; return the id if they complete it."""
        self._seen += data[: _LONGEST - len(self._seen)]
        found = self._pattern(self._seen)
        self.done = found is not None or len(self._seen) >= _LONGEST
        return found[1].decode() if found else ""
