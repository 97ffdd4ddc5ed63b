"""Values of the model for tests: short ways to build them, and strategies that draw them."""

import struct
from itertools import combinations
from typing import Any

from hypothesis import strategies as st

from epp.model.candidate import Candidate
from epp.model.endpoint import CurrentLoad, Endpoint, Load
from epp.model.request import Api, InferenceRequest, Prompt, RequestId

SECRET = b"a secret of the tests"
ADAPTERS = ("", "base", "lora-a", "lora-b", "lora-c")


def endpoint(name="pod-0", address="10.0.0.1", port=8000, **more):
    return Endpoint("default", name, address, port, **more)


def request(identity="r1", *texts, **more):
    """Ask for completions of texts, or lists of token ids; `more` are other fields."""
    usual: dict[str, Any] = {
        "api": Api.COMPLETIONS,
        "model": "m",
        "target_model": "m",
        "prompts": tuple(map(prompt, texts)),
        "stream": True,
    }
    return InferenceRequest(id=RequestId(identity), **usual | more)


def prompt(words):
    """Make a prompt of a text, or of token ids."""
    if isinstance(words, str):
        return Prompt(words.encode())
    return Prompt(struct.pack(f"<{len(words)}I", *words), exact=True)


def text(tokens, seed=""):
    """Write a text of `tokens` tokens at the default four bytes each; equal seeds, equal starts."""
    words = "".join(f"{seed}{number:07d} " for number in range(tokens // 2 + 1))  # 8 bytes or more
    return words[: tokens * 4].translate(_LETTERS)


_LETTERS = str.maketrans("0123456789", "etaoinshrd")
"""Numbers in letters, so that a text is prose to those who tell prose from code."""


shares = st.floats(0, 1)
seconds = st.floats(0, 1e3)
adapter_sets = st.sampled_from(
    [frozenset(each) for size in range(4) for each in combinations(ADAPTERS[1:], size)]
)

loads = st.builds(
    Load,
    waiting=st.one_of(st.integers(0, 5).map(float), st.floats(0, 1e6)),
    running=st.integers(0, 300).map(float),
    kv_usage=shares,
    running_adapters=adapter_sets,
    waiting_adapters=adapter_sets,
    max_adapters=st.integers(0, 4),
)
prompt_lengths = st.integers(0, 20_000)
reckoned = st.fixed_dictionaries(
    {
        "load": loads,
        "queued_prefill_seconds": seconds,
        "prefill_seconds": seconds,
        "class_prefill_seconds": seconds,
        "decode_seconds": seconds,
        "generation_seconds": seconds,
        "crowding_seconds": seconds,
        "slot_seconds": seconds,
        "requests": st.integers(0, 50),
    }
)


@st.composite
def candidates(draw, least=1, most=6):
    """Draw candidates for one request: as many as asked for, one prompt, one fleet."""
    prompt = draw(prompt_lengths)
    cached = st.integers(0, prompt)
    busy, share = draw(shares), draw(shares)
    count = draw(st.integers(least, most))
    return [
        Candidate(
            endpoint=endpoint(f"pod-{number}", f"10.0.0.{number + 1}"),
            prompt_tokens=prompt,
            cached_tokens=draw(cached),
            busy_share=busy,
            ttft_share=share,
            **draw(reckoned),
        )
        for number in range(count)
    ]


class SteadyLoad(CurrentLoad, frozen=True):
    """A load that stays the same (`LoadSource`)."""

    def at(self, _now, /):
        return self


def candidate(name="pod-0", load=None, **more):
    return Candidate(endpoint=endpoint(name), load=load or Load(), **more)


class Number:
    """What NumPy's integers are to Python: no `int`, but as good as one."""

    def __init__(self, value):
        self._value = value

    def __index__(self):
        return self._value
