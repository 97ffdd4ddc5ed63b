"""Whether anything is cached of what is predicted to be, by class: adapter, salt and media."""

import itertools
import json

import pytest

from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import Load
from epp.model.learning.trust import DOUBT
from epp.model.request import Usage
from epp.protocol.extproc.record import Outcome
from tests.adapters.telemetry_page import A, B, record, request, values
from tests.app.watched import Watched
from tests.strategies import text

FAMILY = "warmpick_predicted_hits_total"
PROMPT = text(512)


def counts(page):
    """What was counted: (adapter, salted, media, result) to responses."""
    found = {}
    for name, number in page.items():
        if name.startswith(FAMILY):
            labels = dict(pair.split("=") for pair in name[len(FAMILY) + 1 : -1].split(","))
            found[tuple(json.loads(each) for each in labels.values())] = int(float(number))
    return found


def chat(**more):
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "stream": True, **more}
    ).encode()


def served(watched, cached, body=None, **fields):
    exchange, _ = watched.ask(PROMPT, body=body, **fields)
    return watched.answer(exchange, cached)


def test_a_first_prompt_is_not_counted_and_a_second_one_is():
    watched = Watched()
    served(watched, 0)
    assert counts(watched.page()) == {}
    served(watched, 480)
    served(watched, 480)
    assert counts(watched.page()) == {("false", "false", "false", "found"): 2}


def test_a_class_that_matches_nothing_shows_beside_one_that_does():
    watched = Watched()
    for _ in range(5):
        served(watched, 480)
        served(watched, 0, chat(cache_salt="secret"))
    page = watched.page()
    assert counts(page)["false", "true", "false", "missed"] == 4
    assert not any("secret" in name for name in page if name.startswith(FAMILY))
    assert ("false", "true", "false", "found") not in counts(page)
    assert counts(page)["false", "false", "false", "found"] >= 3


def test_it_shows_however_little_the_endpoints_are_trusted():
    watched = Watched(pods=1)
    for _ in range(40):
        served(watched, 0)
    (stats,) = watched.fleet.cache_stats()
    assert stats.trust < DOUBT
    assert counts(watched.page()) == {("false", "false", "false", "missed"): 39}


def one(*, matched=9, total=9, tokens=144, cached=0, target=None, **fields):
    """What is counted of one response."""
    counted = Telemetry(
        MetricSources("pool", list, list, int, is_adapter=frozenset({"lora"}).__contains__)
    )
    picked = Candidate(endpoint=A, load=Load(), matched_blocks=matched, total_blocks=total)
    decision = Decision(endpoints=(A,), prompt_tokens=tokens, predicted_for=picked)
    usage = None if cached is None else Usage(tokens, 1, cached)
    counted.finished(
        record(decision=decision, usage=usage, served=target, request=request(**fields))
    )
    return {tuple(dict(labels).values()): n for labels, n in values(counted, FAMILY).items()}


@pytest.mark.parametrize(
    ("adapter", "salted", "media", "cached"), list(itertools.product((False, True), repeat=4))
)
def test_each_class_is_counted_by_itself(adapter, salted, media, cached):
    found = one(
        target_model="lora" if adapter else "base",
        cache_salt="s" if salted else "",
        multimodal=media,
        cached=16 if cached else 0,
    )
    said = [str(each).lower() for each in (adapter, media)]
    assert found == {(*said, "found" if cached else "missed", str(salted).lower()): 1}


@pytest.mark.parametrize(
    "less",
    [
        {"matched": 0},
        {"matched": 1, "total": 1},
        {"matched": 3, "total": 9, "tokens": 144},
        {"cached": None},
        {"target": B.target},
        {"response_id": "resp_1"},
    ],
    ids=[
        *("nothing predicted", "one block", "48 tokens", "not reported", "served elsewhere"),
        "after a stored response",
    ],
)
def test_what_shows_nothing_is_not_counted(less):
    assert one(**less) == {}


def test_an_adapter_without_a_rewrite_is_one_too():
    assert one(model="lora", target_model="") == {("true", "false", "missed", "false"): 1}


def test_what_has_failed_before_a_decision_is_not_counted():
    counted = Telemetry(MetricSources("pool", list, list, int))
    counted.finished(record(decision=None, outcome=Outcome.REJECTED, usage=None))
    assert values(counted, FAMILY) == {}
