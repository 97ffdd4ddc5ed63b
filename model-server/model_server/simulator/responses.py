"""The wording of /v1/responses."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from model_server.simulator.completions import Head
from model_server.simulator.engine import Piece
from model_server.simulator.scheduler import Finish
from model_server.simulator.usage import responses_usage


class ResponseEvents:
    """Events of a streamed response, numbered and named as OpenAI's client expects.

    `keep` is called with the response before its last event.
    """

    def __init__(self, head: Head) -> None:
        self.head = head
        self.keep: Callable[[dict[str, Any]], None] | None = None
        self._number = 0
        self._texts: list[str] = []

    def opening(self) -> bytes:
        """Begin the response, its one message, and the message's one part."""
        started = _response(self.head, "in_progress", [])
        item = _message(self.head, "in_progress", [])
        return b"".join(
            (
                self._event("response.created", {"response": started}),
                self._event("response.in_progress", {"response": started}),
                self._event("response.output_item.added", {"output_index": 0, "item": item}),
                self._event("response.content_part.added", self._place({"part": _part("")})),
            )
        )

    def piece(self, piece: Piece) -> bytes:
        """One delta; the end-of-sequence token has none."""
        if not piece.text:
            return b""
        self._texts.append(piece.text)
        delta = {"delta": piece.text, "logprobs": []}
        return self._event("response.output_text.delta", self._place(delta))

    def closing(self) -> bytes:
        """End all that began, with the usage last."""
        text = "".join(self._texts)
        item = _message(self.head, "completed", [_part(text)])
        whole = whole_response(self.head, [text], [self.head.requests[0].finish])
        if self.keep is not None:
            self.keep(whole)
        name = "response.completed" if whole["status"] == "completed" else "response.incomplete"
        return b"".join(
            (
                self._event(
                    "response.output_text.done", self._place({"text": text, "logprobs": []})
                ),
                self._event("response.content_part.done", self._place({"part": _part(text)})),
                self._event("response.output_item.done", {"output_index": 0, "item": item}),
                self._event(name, {"response": whole}),
            )
        )

    def _place(self, fields: Mapping[str, object]) -> dict[str, object]:
        return {
            "item_id": _message_id(self.head),
            "output_index": 0,
            "content_index": 0,
            **fields,
        }

    def _event(self, name: str, fields: Mapping[str, object]) -> bytes:
        body = {"type": name, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(body))


def whole_response(
    head: Head, texts: Sequence[str], finishes: Sequence[Finish | None]
) -> dict[str, Any]:
    """Word the response when it has ended; incomplete when it met its token limit."""
    status = "incomplete" if finishes[0] is Finish.LENGTH else "completed"
    body = _response(head, status, [_message(head, "completed", [_part(texts[0])])])
    if status == "incomplete":
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    body["usage"] = responses_usage(head.requests, details=head.details)
    return body


def _response(head: Head, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": head.id,
        "object": "response",
        "created_at": head.created,
        "model": head.model,
        "status": status,
        "output": output,
        "error": None,
        "incomplete_details": None,
        "usage": None,
    }


def _message(head: Head, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": _message_id(head),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _message_id(head: Head) -> str:
    return head.id.replace("resp_", "msg_", 1)


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}
