"""Requests as the exchange makes them of bodies."""

import json
from itertools import count
from typing import Any

from epp.model.request import Api, InferenceRequest, RequestId
from epp.protocol.bodies.request_json import parse_request
from epp.protocol.bodies.token_prompts import packed

_numbers = count()
MODEL = "tiny"


def asked(api: Api, **fields: Any) -> InferenceRequest:
    """Make a request with its body kept."""
    body = json.dumps({"model": MODEL} | fields, ensure_ascii=False).encode()
    return raw(api, body)


def raw(api: Api, body: bytes) -> InferenceRequest:
    """Make a request of a body."""
    prompts = parse_request(api, body).prompts
    number = RequestId(f"r{next(_numbers)}")
    return InferenceRequest(
        id=number, api=api, model=MODEL, target_model=MODEL, prompts=prompts, body=body
    )


def chat(*texts: Any, **fields: Any) -> InferenceRequest:
    """Make a conversation; the user speaks first, then by turns."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return asked(Api.CHAT, messages=messages, **fields)


def completions(prompt: Any, **fields: Any) -> InferenceRequest:
    """Make a completions request."""
    return asked(Api.COMPLETIONS, prompt=prompt, **fields)


def ids(prompt: Any) -> list[int]:
    """Return the token ids of a prompt that has them."""
    assert prompt.exact
    data = prompt.data
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def whole(vocabulary, text):
    """Return a text's ids with special tokens added, as the library encodes it."""
    return packed(vocabulary._tokenizer.encode(text).ids)
