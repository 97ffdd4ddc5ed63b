"""The fleet: what it learns from requests, and what others do."""

import pytest

from epp.model.events import Finished, FirstToken
from epp.model.learning.prefill import STEP_SECONDS, PrefillModel
from epp.model.pods.pods import CLASS_LABEL
from epp.model.request import RequestId, Usage
from tests.model.rig import LONG, Rig, predicted
from tests.strategies import text


def test_waiting_requests_of_others_are_queued_prefill():
    rig = Rig()
    rig.report("pod-0", waiting=3)
    seconds = PrefillModel().seconds(1000, 0)
    assert rig.ask(LONG)["pod-0"].queued_prefill_seconds == pytest.approx(3 * seconds)
    assert rig.ask()["pod-0"].queued_prefill_seconds == pytest.approx(3 * STEP_SECONDS)
    rig.send("pod-0", "r1", "x")  # the report is older
    assert rig.ask(LONG)["pod-0"].queued_prefill_seconds == pytest.approx(
        3 * seconds + PrefillModel().seconds(1, 0)
    )


def test_decodes_interfere_by_number_and_by_what_they_look_back_at():
    rig = Rig()
    rig.report("pod-0", running=100, kv_usage=0.5, num_blocks=100_001, block_size=16)
    found = rig.ask(text(1000))
    decode = 100 * 20e-6 + 56e-9 * 0.5 * 1_600_000
    assert found["pod-0"].decode_seconds == pytest.approx(decode)
    # 256 tokens are expected: each waits for the others, and each of them for it.
    own = 20e-6 + 56e-9 * (1000 + 256 / 2)
    assert found["pod-0"].crowding_seconds == pytest.approx(256 * (decode + 100 * own))
    assert found["pod-1"].decode_seconds == found["pod-1"].crowding_seconds == 0


def test_a_decision_keeps_what_it_was_made_by():
    rig = Rig()
    found = rig.fleet.candidates(rig.quote("r1", LONG), rig.now)
    seen = [(found[each].decode_seconds, found[each].crowding_seconds) for each in (0, 1)]
    rig.send("pod-0", "r2", LONG)
    assert [(each.decode_seconds, each.crowding_seconds) for each in found] == seen


def test_the_busy_share_is_averaged_over_ten_seconds():
    rig = Rig(4)
    assert rig.ask()["pod-0"].busy_share == 0
    rig.send("pod-0", "r1", text(200_000))
    assert rig.ask()["pod-0"].busy_share == 0
    rig.now += 10
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0.25 * (1 - 1 / 2.718281828))
    rig.now += 50
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0.25, abs=0.002)
    rig.apply(Finished(RequestId("r1")))
    rig.now += 100
    assert rig.ask()["pod-0"].busy_share == pytest.approx(0, abs=1e-4)


def test_bytes_a_token_are_learned_per_model():
    rig = Rig()
    rig.send("pod-0", "r1", LONG)
    rig.apply(Finished(RequestId("r1"), Usage(2000, 1, 0)))
    assert rig.ask(LONG)["pod-0"].prompt_tokens == 2000
    assert rig.ask(LONG, target_model="other")["pod-0"].prompt_tokens == 1000


@pytest.mark.parametrize(
    ("prompts", "usage"),
    [
        (("a" * 4000, "b" * 4000), Usage(500, 1, 0)),
        (("a" * 4000,), Usage(0, 1, 0)),
        (("a" * 4000,), None),
    ],
    ids=["several prompts", "none reported", "no usage"],
)
def test_bytes_a_token_are_learned_from_clear_cases_only(prompts, usage):
    rig = Rig()
    rig.send("pod-0", "r1", *prompts)
    rig.apply(Finished(RequestId("r1"), usage))
    assert rig.ask(LONG)["pod-0"].prompt_tokens == 1000


def test_token_ids_are_counted_not_estimated():
    rig, ids = Rig(), list(range(1000))
    rig.send("pod-0", "r1", ids)
    rig.apply(Finished(RequestId("r1"), Usage(900, 1, 0)))
    found = rig.ask(ids)["pod-0"]
    assert (found.prompt_tokens, found.cached_tokens) == (1000, predicted(1000))


def slow(rig, name, identity, tokens, seconds):
    rig.send(name, identity, text(tokens, identity))
    rig.now += seconds
    rig.apply(FirstToken(RequestId(identity)))
    rig.apply(Finished(RequestId(identity)))


def test_prefill_is_learned_from_endpoints_that_were_idle():
    rig = Rig()
    for number in range(60):
        slow(rig, "pod-0", f"r{number}", 500 + 50 * number, 0.01 + 4e-4 * (500 + 50 * number))
    assert rig.ask(text(2000, "new"))["pod-1"].prefill_seconds == pytest.approx(0.8, rel=0.2)


def test_short_prompts_and_queued_ones_teach_nothing():
    rig = Rig()
    slow(rig, "pod-0", "short", 60, 9.0)
    rig.send("pod-0", "first", text(500))
    slow(rig, "pod-0", "second", 500, 9.0)
    assert rig.ask(text(100, "new"))["pod-1"].prefill_seconds == PrefillModel().seconds(100, 0)


def test_classes_of_endpoints_learn_apart():
    rig = Rig(0)
    rig.add("h100", "10.0.0.1", labels={CLASS_LABEL: "h100"})
    rig.add("cpu", "10.0.0.2", labels={CLASS_LABEL: "cpu"})
    for number in range(40):
        slow(rig, "cpu", f"r{number}", 500 + 50 * number, 1 + number)
    found = rig.ask(text(1000, "new"))
    assert found["h100"].prefill_seconds == PrefillModel().seconds(1000, 0)
    assert found["cpu"].prefill_seconds > 1
    rig.add("h100", "10.0.0.1", labels={CLASS_LABEL: "cpu"})
    assert rig.ask(text(1000, "new"))["h100"].prefill_seconds > 1
