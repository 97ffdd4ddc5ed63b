"""Tokens in process: at once or in a thread, exact, bounded, and never an error."""

import asyncio
import json
import threading
from bisect import bisect_left

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from epp.adapters.tokens.fallback import FallbackCause
from epp.adapters.tokens.local.local_tokenizer import LocalLimits, LocalTokenizer
from epp.adapters.tokens.local.model_folder import read_folder
from epp.adapters.tokens.local.plan import MAX_PIECES
from epp.adapters.tokens.local.vocabulary import Vocabulary
from epp.model.request import Api, InferenceRequest, Prompt, RequestId
from tests.adapters.tokens import bodies
from tests.adapters.tokens.bodies import chat, completions, ids, raw
from tests.adapters.tokens.folders import byte_level, metaspace, split_then_bytes, texts, write

LONG = "the keeper of the lighthouse counted 42 boats\n" * 100
PATIENT = LocalLimits(patience=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return read_folder(write(tmp_path_factory.mktemp("m") / "m", split_then_bytes()))


@pytest.fixture
async def local(folder):
    made = LocalTokenizer(folder, PATIENT)
    yield made
    await made.close()


@pytest.fixture
async def limited(folder):
    """Make tokenizers with other limits."""
    made = []

    def make(**limits):
        made.append(LocalTokenizer(folder, replace(PATIENT, **limits)))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def whole(folder, asked):
    """The ids of a rendered chat, tokenized in one go."""
    text = folder.template.render(json.loads(asked.body))
    return folder.vocabulary.encode([text])[text]


def at_once(tokenizer, asked):
    """What is known without waiting."""
    found = tokenizer.ready(asked)
    assert found is not None
    return found


async def test_a_short_chat_is_answered_at_once(local, folder):
    asked = chat("hello")
    (prompt,) = at_once(local, asked)
    assert prompt.exact
    assert prompt.data == whole(folder, asked)
    assert local.counts == {}


async def test_messages_of_anthropics_have_the_tokens_of_the_chat_that_vllm_makes(local, folder):
    blocks = [{"type": "text", "text": "hello"}]
    messages = bodies.asked(Api.MESSAGES, messages=[{"role": "user", "content": blocks}])
    assert at_once(local, messages)[0].data == whole(folder, chat("hello"))
    turns = [{"role": role, "content": "hi"} for role in ("user", "system", "user")]
    messages = bodies.asked(Api.MESSAGES, messages=turns)
    assert at_once(local, messages)[0].data == whole(folder, bodies.asked(Api.CHAT, messages=turns))


async def test_a_long_chat_is_tokenized_in_a_thread_and_then_cached(local, folder):
    asked = chat(LONG)
    assert local.ready(asked) is None
    (prompt,) = await local.tokenize(asked)
    assert prompt.data == whole(folder, asked)
    assert local.ready(asked) == (prompt,)
    longer = chat(LONG, "and then?", "none")
    (prompt,) = at_once(local, longer)
    assert prompt.data == whole(folder, longer)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
async def test_conversations_that_grow_have_the_tokens_of_the_whole(folder, data):
    words = st.lists(st.sampled_from(texts()), max_size=8).map("".join)
    said = data.draw(st.lists(words, min_size=1, max_size=6))
    tokenizer = LocalTokenizer(folder, LocalLimits(cache_bytes=data.draw(st.integers(0, 4000))))
    before = b""
    for turn in range(1, len(said) + 1):
        asked = chat(*said[:turn])
        (prompt,) = at_once(tokenizer, asked)
        assert prompt.data == whole(folder, asked)
        closed = prompt.data[: prompt.marks[turn - 1] * 4]
        assert closed.startswith(before)
        before = closed
    await tokenizer.close()


async def test_marks_are_where_messages_end(local):
    (prompt,) = at_once(local, chat("one", "two", "three"))
    tokens = ids(prompt)
    end = 1  # <|im_end|>
    assert len(prompt.marks) == 3
    assert [tokens[mark - 1] for mark in prompt.marks] == [end] * 3
    assert tokens.count(end) == 3
    (longer,) = at_once(local, chat("one", "two", "three", "four"))
    assert longer.marks[:3] == prompt.marks


@pytest.mark.parametrize("make", [byte_level, split_then_bytes, metaspace("first")])
@pytest.mark.parametrize("special", [None, True, False])
async def test_completions(tmp_path, make, special):
    folder = read_folder(write(tmp_path / "m", make()))
    local = LocalTokenizer(folder, LocalLimits())
    fields = {} if special is None else {"add_special_tokens": special}
    text = "<s>the keeper<|im_end|> of\n"
    plain = folder.vocabulary.encode([text])[text]
    want = plain if special is False else bodies.whole(folder.vocabulary, text)
    prompts = at_once(local, completions(text, **fields))
    assert [prompt.data for prompt in prompts] == [want]
    prompts = at_once(local, completions([text, "x"], **fields))
    assert next(prompt.data for prompt in prompts) == want
    assert len(prompts) == 2
    await local.close()


async def test_a_chat_may_ask_for_added_special_tokens(local, folder):
    before, _ = folder.vocabulary.affixes
    (plain,) = at_once(local, chat("hello"))
    (more,) = at_once(local, chat("hello", add_special_tokens=True))
    assert more.data == before + plain.data
    assert list(more.marks) == [mark + 1 for mark in plain.marks]


async def test_token_ids_are_returned_unchanged(local):
    for prompt in ([1, 2, 3], [[1, 2], [3]]):
        asked = completions(prompt)
        assert local.ready(asked) is asked.prompts
    mixed = at_once(local, completions([[7, 8], "x"]))
    assert [prompt.exact for prompt in mixed] == [True, True]
    assert ids(mixed[0]) == [7, 8]
    assert local.counts == {}


async def test_a_request_without_prompts_stays_without(local):
    asked = InferenceRequest(id=RequestId("x"), api=Api.OTHER)
    assert local.ready(asked) == ()
    assert local.counts == {}


IMAGE = [{"type": "image_url", "image_url": {"url": "data:"}}]
NUMBERS = b'{"model": "m", "prompt": ["a", 1]}'


@pytest.mark.parametrize(
    ("asked", "cause"),
    [
        (chat(IMAGE), FallbackCause.MEDIA),
        (chat("x", tools=[]), FallbackCause.MALFORMED),
        (chat("x", chat_template="{{ 1 }}"), FallbackCause.FIELD),
        (chat("x", chat_template_kwargs={"chat_template": "x"}), FallbackCause.FIELD),
        (chat("x", truncate_prompt_tokens=5), FallbackCause.FIELD),
        (chat("x", continue_final_message=True), FallbackCause.MALFORMED),
        (completions("x", suffix="y"), FallbackCause.FIELD),
        (completions("x", prompt_embeds="AA"), FallbackCause.FIELD),
        (bodies.asked(Api.EMBEDDINGS, input="x"), FallbackCause.API),
        (bodies.asked(Api.RESPONSES, input="x"), FallbackCause.API),
        (
            InferenceRequest(id=RequestId("b"), api=Api.CHAT, prompts=(Prompt(b"x"),)),
            FallbackCause.BODY,
        ),
        (
            raw(Api.CHAT, b'{"model": "m", "messages": [{"content": "no role"}]}'),
            FallbackCause.MALFORMED,
        ),
    ],
)
async def test_text_stays_text_for_a_cause(local, asked, cause):
    assert local.ready(asked) is asked.prompts
    assert local.ready(asked) is asked.prompts
    assert local.counts == {cause: 2}


async def test_json_that_can_just_be_read_stays_text(local):
    """It may be nested too deep to be written again, in a stack of any depth."""

    def nested(depth: int) -> InferenceRequest:
        call = b'{"type":"tool_use","id":"1","input":' + b"[" * depth + b"]" * depth + b"}"
        body = b'{"messages":[{"role":"assistant","content":[' + call + b"]}]}"
        return InferenceRequest(
            id=RequestId("d"), api=Api.MESSAGES, prompts=(Prompt(b"x"),), body=body
        )

    def refused(depth: int) -> bool:
        local.counts.clear()
        local.ready(nested(depth))
        return bool(local.counts)

    deepest = bisect_left(range(50_000), True, key=refused)
    for depth in range(deepest - 5, deepest + 150):
        local.ready(nested(depth))
        await local.tokenize(nested(depth))
    assert local.counts.keys() <= {FallbackCause.MALFORMED}


async def test_messages_may_have_an_empty_list_of_tools(local):
    turns = [{"role": "user", "content": "x"}]
    (prompt,) = at_once(local, bodies.asked(Api.MESSAGES, messages=turns, tools=[]))
    assert (prompt.exact, ids(prompt)) == (True, ids(at_once(local, chat("x"))[0]))


async def test_each_cause_is_logged_once(local):
    with capture_logs() as logs:
        for asked in (chat(IMAGE), chat(IMAGE), bodies.asked(Api.RESPONSES, input="secret words")):
            local.ready(asked)
    said = [each for each in logs if each["event"] == "tokens.text_instead"]
    assert [each["cause"] == "media" for each in said] == [True, False]
    assert "secret" not in str(logs)


async def test_a_chat_without_a_template_stays_text(tmp_path):
    folder = read_folder(write(tmp_path / "m", byte_level(), None))
    local = LocalTokenizer(folder, LocalLimits())
    asked = chat("hello")
    assert local.ready(asked) is asked.prompts
    assert local.counts == {FallbackCause.TEMPLATE: 1}
    (prompt,) = at_once(local, completions("hello"))
    assert prompt.exact
    await local.close()


async def test_a_large_body_stays_text(limited):
    tokenizer = limited(most_bytes=1000)
    asked = chat("x" * 1000)
    assert tokenizer.ready(asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.LARGE: 1}


async def test_a_body_that_is_long_to_read_is_read_in_a_thread(limited, folder):
    tokenizer = limited(at_once_bytes=10)
    asked, wrong = chat(LONG), chat(IMAGE)
    assert tokenizer.ready(asked) is None
    (prompt,) = await tokenizer.tokenize(asked)
    assert prompt.data == whole(folder, asked)
    assert tokenizer.ready(wrong) is None
    assert await tokenizer.tokenize(wrong) is wrong.prompts
    assert tokenizer.counts == {FallbackCause.MEDIA: 1}


async def test_a_body_of_many_values_is_read_in_a_thread(limited, folder):
    tokenizer = limited(at_once_items=100)
    few, many = chat(*["hi"] * 20), chat(["hi"] * 200)
    assert ids(at_once(tokenizer, few)[0])
    assert tokenizer.ready(many) is None
    (prompt,) = await tokenizer.tokenize(many)
    assert prompt.data == whole(folder, many)


@pytest.mark.parametrize("size", [1, 1 << 18])
async def test_a_prompt_of_more_pieces_than_are_looked_up_stays_text(limited, size):
    tokenizer = limited(at_once_bytes=size)
    asked = completions("<|im_end|>" * (MAX_PIECES + 1))
    assert (tokenizer.ready(asked) or await tokenizer.tokenize(asked)) is asked.prompts
    assert tokenizer.counts == {FallbackCause.LARGE: 1}
    fits = completions("<|im_end|>" * (MAX_PIECES // 2))
    (prompt,) = tokenizer.ready(fits) or await tokenizer.tokenize(fits)
    assert len(ids(prompt)) >= MAX_PIECES // 2


class Counting(Vocabulary):
    """Keeps what it was given."""

    def __init__(self, *more):
        super().__init__(*more)
        self.given = []

    def encode(self, texts):
        self.given += texts
        return super().encode(texts)


class Held(Counting):
    """Encodes nothing until `go` is set."""

    def __init__(self, *more):
        super().__init__(*more)
        self.go = threading.Event()

    def encode(self, texts):
        assert self.go.wait(30)
        return super().encode(texts)


async def test_patience_ends_but_the_work_is_kept(folder):
    vocabulary = Held(split_then_bytes(), ("<|im_start|>", "<|im_end|>"))
    hasty = replace(PATIENT, patience=0.001, at_once_chars=0)
    tokenizer = LocalTokenizer(replace(folder, vocabulary=vocabulary), hasty)
    asked = chat(LONG)
    assert tokenizer.ready(asked) is None
    assert await tokenizer.tokenize(asked) is asked.prompts
    assert tokenizer.counts == {FallbackCause.SLOW: 1}
    vocabulary.go.set()
    async with asyncio.timeout(30):
        while (found := tokenizer.ready(asked)) is None:
            await tokenizer.tokenize(asked)
    assert found[0].data == whole(folder, asked)
    assert sum(LONG in text for text in vocabulary.given) == 1
    await tokenizer.close()


async def test_a_text_that_several_wait_for_is_encoded_once(folder):
    vocabulary = Counting(split_then_bytes(), ("<|im_start|>", "<|im_end|>"))
    tokenizer = LocalTokenizer(replace(folder, vocabulary=vocabulary), PATIENT)
    asked = [chat(LONG * 5, "x", str(number)) for number in range(20)]
    assert [tokenizer.ready(each) for each in asked] == [None] * 20
    found = await asyncio.gather(*map(tokenizer.tokenize, asked))
    assert [prompt.data for (prompt,) in found] == [whole(folder, each) for each in asked]
    assert sum(LONG in text for text in vocabulary.given) == 1
    await tokenizer.close()


async def test_a_cancelled_request_harms_no_other(limited, folder):
    tokenizer = limited()
    first, second = chat(LONG * 50), chat(LONG * 50)
    assert (tokenizer.ready(first), tokenizer.ready(second)) == (None, None)
    gone = asyncio.ensure_future(tokenizer.tokenize(first))
    stays = asyncio.ensure_future(tokenizer.tokenize(second))
    await asyncio.sleep(0)
    gone.cancel()
    (prompt,) = await stays
    assert prompt.data == whole(folder, second)
    assert gone.cancelled()


async def test_a_text_that_cannot_be_encoded_costs_its_own_request_alone(tmp_path):
    """A call's arguments may end within a character: half a surrogate pair is not UTF-8."""
    printed = (
        "<|im_start|>{{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}"
    )
    template = f"{{% for m in messages %}}{printed}<|im_end|>{{% endfor %}}"
    tokenizer = LocalTokenizer(
        read_folder(write(tmp_path / "m", split_then_bytes(), template)), PATIENT
    )
    function = {"name": "f", "arguments": r'{"x": "\ud83d"}'}
    call = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    said = {"role": "user", "content": LONG}
    asked = [bodies.asked(Api.CHAT, messages=[said, call]), chat(LONG, "hello")]
    assert [tokenizer.ready(each) for each in asked] == [None, None]
    found = await asyncio.gather(*map(tokenizer.tokenize, asked))
    assert [prompt.exact for (prompt,) in found] == [False, True]
    assert tokenizer.counts == {FallbackCause.FAILED: 1}
    await tokenizer.close()


async def test_the_loop_runs_while_a_long_text_is_encoded(limited):
    tokenizer = limited(most_bytes=8 << 20)
    asked = chat(LONG * 150)
    assert tokenizer.ready(asked) is None
    task = asyncio.ensure_future(tokenizer.tokenize(asked))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    assert task.result()[0].exact
    assert turns > 100


async def test_long_texts_hold_up_no_shorter_ones_and_do_not_pile_up(limited):
    """While one that is long is encoded, another is; and more of the long ones stay text."""
    tokenizer = limited(most_bytes=2_000_000, at_once_chars=0, patience=60)
    long = [completions(f"{number}" * 1_500_000) for number in range(4)]
    waiting = [asyncio.create_task(tokenizer.tokenize(each)) for each in long]
    (prompt,) = await tokenizer.tokenize(completions(LONG))
    assert prompt.exact
    assert not any(task.done() and task.result()[0].exact for task in waiting)
    found = await asyncio.gather(*waiting)
    assert [each.exact for (each,) in found] == [True, True, False, False]
    assert tokenizer.counts == {FallbackCause.SLOW: 2}
