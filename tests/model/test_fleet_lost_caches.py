"""An endpoint that lost its cache, not its process: it is slow for nobody, and is tried again."""

import pytest

from epp.model.learning.prefill import PrefillModel
from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import text

WHOLE = PrefillModel().seconds(1100, 0)


def shared(number):
    """A prompt of a shared message of 1000 tokens and one of its own."""
    own = text(100, str(number)).encode()
    return {"prompts": (Prompt(LONG.encode() + own, marks=(4000, 4000 + len(own))),)}


def serve(rig, identity, seconds, cached, **prompt):
    """Have pod-0 answer after so long; return how slow its first token made it look."""
    rig.send("pod-0", identity, **prompt)
    rig.now += seconds
    rig.apply(FirstToken(RequestId(identity)))
    slow = rig.pod("pod-0").pace.prefill_slowness.value
    rig.apply(Finished(RequestId(identity), Usage(1100, 1, cached)))
    rig.now += 1.0
    return slow


@pytest.fixture
def rig():
    """One that has served a shared prompt, and is known to be as fast as its class."""
    rig = Rig()
    for number in range(20):
        own = {"prompts": (Prompt(text(1100, f"{number}x").encode()),)}
        serve(rig, f"new {number}", WHOLE, 0, **own)
    serve(rig, "first", WHOLE, 0, **shared("first"))
    serve(rig, "second", PrefillModel().seconds(108, 992), 992, **shared("second"))
    rig.report("pod-0", started_at=5.0)  # another one would show a restart
    assert rig.pod("pod-0").pace.prefill_slowness.value == pytest.approx(1.0)
    return rig


def lose(rig, times):
    """Have this many prompts miss that were to hit."""
    return [serve(rig, f"lost {number}", WHOLE, 0, **shared(number)) for number in range(times)]


def test_a_prompt_that_misses_the_cache_makes_no_endpoint_look_slow(rig):
    (slow,) = lose(rig, 1)
    assert slow > 1.01  # what was cached of it is only known when it ends
    assert rig.pod("pod-0").pace.prefill_slowness.value == pytest.approx(1.0, abs=0.001)


def test_nor_do_many_of_them(rig):
    lose(rig, 40)
    assert rig.pod("pod-0").pace.prefill_slowness.value == pytest.approx(1.0, abs=0.02)
    assert rig.pod("pod-0").speed.prefill.seconds(1100, 0) == pytest.approx(WHOLE, rel=0.02)


def test_nor_does_one_look_fast_whose_predictions_come_true_again(rig):
    lose(rig, 4)
    for number in range(8):
        serve(rig, f"hit {number}", PrefillModel().seconds(108, 992), 992, **shared(f"h{number}"))
    assert rig.pod("pod-0").pace.prefill_slowness.value == pytest.approx(1.0, abs=0.02)


def test_a_request_is_booked_as_it_was_priced(rig):
    lose(rig, 4)
    (found, _) = rig.fleet.candidates(rig.quote("r1", **shared("r1")), rig.now)
    cached = found.cached_tokens
    assert cached < predicted(1000) // 2
    whole = rig.pod("pod-0").speed.prefill.seconds(found.prompt_tokens - cached, cached)
    assert found.class_prefill_seconds == pytest.approx(whole)
    rig.send("pod-0", "r1", **shared("r1"))
    assert rig.queued_seconds()["pod-0"] == pytest.approx(found.prefill_seconds)
    assert rig.in_flight("r1").cached == predicted(1000)  # what trust is measured by
