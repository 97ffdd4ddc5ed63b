"""The demonstration of prefix caching in `model-server/examples`, on real vLLM."""

import asyncio
import sys
from itertools import groupby, takewhile
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from epp.gateway.processes import spawn

pytestmark = pytest.mark.vllm
EXAMPLE = Path(__file__).parents[1] / "model-server" / "examples" / "prefix_caching"
RUN_SECONDS = 1200
BLOCK = 32
SIZE = ("--lines", "16", "--questions", "3")
TEXTS = ("table", "chat")


def question(asked):
    return asked["demonstration"], asked["reader"], asked["question"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def answers(tmp_path_factory):
    """Everything that was asked, in the order of the demonstration's report."""
    logs = tmp_path_factory.mktemp("prefix-caching")
    file = logs / "answers.json"
    argv = (sys.executable, str(EXAMPLE), *SIZE, "--json", str(file))
    run = await spawn("prefix-caching", argv, log_dir=logs)
    try:
        assert await run.wait_exit(RUN_SECONDS) == 0, run.log_path.read_text()
    finally:
        await run.stop()
    report = await asyncio.to_thread(run.log_path.read_text)
    return msgspec.json.decode(file.read_bytes()), report


def reused(earlier, prompt):
    """The tokens at the head of a prompt that vLLM has in full blocks, but for the last token.

    Of what was answered, the last token was never computed.
    """
    computed = [*earlier["prompt"], *earlier["generated"]][:-1]
    pairs = zip(computed, prompt[:-1], strict=False)
    return len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))) // BLOCK * BLOCK


def test_everything_was_asked_under_every_setting(answers):
    asked, _ = answers
    settings = [(caching, servers) for caching in (False, True) for servers in (1, 2)]
    found = {(*each["setting"].values(), *question(each)) for each in asked}
    expected = {
        (*setting, text, reader, number)
        for setting in settings
        for text in TEXTS
        for reader in (1, 2)
        for number in (1, 2, 3)
    }
    assert len(asked) == len(expected)
    assert found == expected


def test_cached_are_the_full_blocks_that_the_server_has_computed_before(answers):
    asked, _ = answers
    for each in asked:
        before = [
            other
            for other in asked
            if (other["demonstration"], other["setting"], other["reader"], other["server"])
            == (each["demonstration"], each["setting"], each["reader"], each["server"])
            and other["question"] < each["question"]
        ]
        found = max((reused(other, each["prompt"]) for other in before), default=0)
        assert each["cached"] == (found if each["setting"]["caching"] else 0), question(each)
        if each["setting"]["caching"] and each["question"] > 1:
            # All but the end of the text is there again.
            assert each["cached"] > len(each["prompt"]) / 2


def test_replay_foretells_what_is_cached(answers):
    asked, _ = answers
    assert [each["replay"]["cached"] for each in asked] == [each["cached"] for each in asked]


def test_the_picker_takes_each_reader_back_to_the_server_that_has_the_text(answers):
    asked, _ = answers
    cached = [each for each in asked if each["setting"] == {"caching": True, "servers": 2}]
    homes = {
        reader: {each["server"] for each in rows}
        for reader, rows in groupby(cached, lambda each: (each["demonstration"], each["reader"]))
    }
    assert all(len(servers) == 1 for servers in homes.values()), homes
    for text in TEXTS:
        assert homes[text, 1] != homes[text, 2]


def test_answers_are_the_same_with_and_without_caching(answers):
    """One token's scores may be summed in another order, and two be nearly equal: not here."""
    asked, _ = answers
    ordered = sorted(asked, key=question)
    for name, rows in groupby(ordered, question):
        assert len({(*each["prompt"], *each["generated"]) for each in rows}) == 1, name


def test_the_report_has_every_setting(answers):
    _, report = answers
    for setting in ("off, one server", "off, two behind", "on, one server", "on, two behind"):
        # As it began, then in a table of its own and in that of the means.
        assert report.count(f"caching {setting}") == 1 + 2 * len(TEXTS)
