"""Values of the model for tests: short ways to build them, and strategies that draw them."""

from hypothesis import strategies as st

from epp.model.candidate import Candidate
from epp.model.endpoint import Endpoint, Load
from epp.model.request import Api, InferenceRequest, Prompt, RequestId
from epp.values import replaced

SECRET = b"a secret of the tests"
ADAPTERS = ("", "base", "lora-a", "lora-b", "lora-c")


def endpoint(name="pod-0", address="10.0.0.1", port=8000, **more):
    return Endpoint("default", name, address, port, **more)


def request(identity="r1", *texts, **more):
    """Ask for completions of texts, or lists of token ids; `more` are other fields."""
    prompts = tuple(prompt(each) for each in texts)
    plain = InferenceRequest(
        id=RequestId(identity),
        api=Api.COMPLETIONS,
        model="m",
        target_model="m",
        prompts=prompts,
        stream=True,
    )
    return replaced(plain, **more)


def prompt(words):
    """Make a prompt of a text, or of token ids."""
    if isinstance(words, str):
        return Prompt(words.encode())
    return Prompt(b"".join(each.to_bytes(4, "little") for each in words), exact=True)


def text(tokens, seed=""):
    """Write a text of `tokens` tokens at the default four bytes each; equal seeds, equal starts."""
    words = "".join(f"{seed}{number:07d} " for number in range(tokens // 2 + 1))  # 8 bytes or more
    return words[: tokens * 4].translate(_LETTERS)


_LETTERS = str.maketrans("0123456789", "etaoinshrd")
"""Numbers in letters, so that a text is prose to those who tell prose from code."""


shares = st.floats(0, 1)
seconds = st.floats(0, 1e3)
adapter_sets = st.frozensets(st.sampled_from(ADAPTERS[1:]), max_size=3)

loads = st.builds(
    Load,
    waiting=st.one_of(st.integers(0, 5).map(float), st.floats(0, 1e6)),
    running=st.integers(0, 300).map(float),
    kv_usage=shares,
    running_adapters=adapter_sets,
    waiting_adapters=adapter_sets,
    max_adapters=st.integers(0, 4),
)


@st.composite
def candidates(draw, least=1, most=6):
    """Draw candidates for one request: as many as asked for, one prompt, one fleet."""
    prompt = draw(st.integers(0, 20_000))
    busy, share = draw(shares), draw(shares)
    count = draw(st.integers(least, most))
    return [
        Candidate(
            endpoint=endpoint(f"pod-{number}", f"10.0.0.{number + 1}"),
            load=draw(loads),
            prompt_tokens=prompt,
            cached_tokens=draw(st.integers(0, prompt)),
            queued_prefill_seconds=draw(seconds),
            prefill_seconds=draw(seconds),
            class_prefill_seconds=draw(seconds),
            decode_seconds=draw(seconds),
            generation_seconds=draw(seconds),
            crowding_seconds=draw(seconds),
            slot_seconds=draw(seconds),
            requests=draw(st.integers(0, 50)),
            busy_share=busy,
            ttft_share=share,
        )
        for number in range(count)
    ]


def candidate(name="pod-0", load=None, **more):
    return Candidate(endpoint=endpoint(name), load=load or Load(), **more)


class Number:
    """What NumPy's integers are to Python: no `int`, but as good as one."""

    def __init__(self, value):
        self._value = value

    def __index__(self):
        return self._value
