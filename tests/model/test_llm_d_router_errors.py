"""Errors that approximate indexes in the field make, each as something that does not happen here.

The list is that of llm-d-router's approximate prefix cache (its index is written at dispatch,
counts 64-token entries against an engine's count of 16-token blocks, evicts the head of the
oldest prompt first, credits blocks behind a hole, knows no generated tokens, takes no feedback,
and keeps the entries of an engine that restarted under the same name).
"""

import pytest

from epp.model.endpoint import EndpointId, Load, Target
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import Finished, Served
from tests.model.rig import Rig
from tests.strategies import endpoint

BLOCK = 16
POD = EndpointId("default/pod-0")


def ids(start, count):
    return list(range(start, start + count))


def serve(rig, identity, tokens, usage=None, pod="pod-0"):
    rig.send(pod, identity, tokens)
    rig.apply(Finished(RequestId(identity), usage or Usage(len(tokens), 1)))


@pytest.fixture
def rig():
    """Two endpoints with 100 usable blocks of 16 tokens each."""
    rig = Rig()
    for name in ("pod-0", "pod-1"):
        rig.report(name, block_size=BLOCK, num_blocks=101)
    return rig


def test_capacity_is_counted_in_the_engines_blocks(rig):
    for number in range(3):
        serve(rig, f"r{number}", ids(10_000 * number, 800))
    assert rig.cached(ids(0, 800))["pod-0"] == 0
    assert rig.cached(ids(20_000, 800))["pod-0"] == 784


def test_capacity_follows_the_engine(rig):
    serve(rig, "r1", ids(0, 800))
    rig.report("pod-0", block_size=BLOCK, num_blocks=21)
    assert rig.cached(ids(0, 800))["pod-0"] == 320
    rig.report("pod-0", block_size=BLOCK, num_blocks=1001)
    for number in range(10):
        serve(rig, f"more{number}", ids(10_000 * (number + 1), 800))
    assert rig.cached(ids(0, 800))["pod-0"] == 320


def test_the_tail_of_the_oldest_prompt_goes_first(rig):
    serve(rig, "old", ids(0, 800))
    serve(rig, "new", ids(10_000, 1280))
    assert rig.cached(ids(0, 800))["pod-0"] == 320


def test_what_is_in_use_is_not_evicted(rig):
    rig.send("pod-0", "running", ids(0, 800))
    for number in range(5):
        serve(rig, f"r{number}", ids(10_000 * (number + 1), 700))
    assert rig.cached(ids(0, 800))["pod-0"] == 784


def test_blocks_behind_a_hole_count_for_nothing(rig):
    serve(rig, "r1", ids(0, 800))
    pod = rig.pod("pod-0")
    second = rig.quote("probe", ids(0, 800)).chains[0].hashes[1]
    pod.scheduler.cache.discard([second])
    pod.scheduler.schedule(pod.speed.prefill.longest, rig.now)
    assert rig.cached(ids(0, 800))["pod-0"] == BLOCK


def test_generated_tokens_are_found_in_the_next_turn(rig):
    serve(rig, "r1", ids(0, 400), Usage(400, 200, 0))
    turn = Prompt(
        b"".join(i.to_bytes(4, "little") for i in ids(0, 660)), exact=True, marks=(400, 600)
    )
    assert rig.cached(prompts=(turn,))["pod-0"] == 599 // BLOCK * BLOCK


def test_a_last_partial_block_is_not_held_against_a_longer_prompt(rig):
    serve(rig, "r1", ids(0, 410))
    assert rig.cached(ids(0, 700))["pod-0"] == 400
    assert rig.cached(ids(0, 410))["pod-0"] == 400


def test_reports_of_less_than_predicted_discount_predictions(rig):
    for number in range(2):
        serve(rig, f"r{number}", ids(10_000 * number, 790))
    before = rig.ask(ids(0, 790))["pod-0"]
    for number in range(12):
        serve(rig, f"hit{number}", ids(10_000, 790), Usage(790, 1, 784))
        serve(rig, f"miss{number}", ids(10_000, 790), Usage(790, 1, 150))
    after = rig.ask(ids(0, 790))["pod-0"]
    assert after.cached_tokens < before.cached_tokens
    assert after.trust < before.trust == 1.0


@pytest.mark.parametrize(
    "sign",
    [
        LoadReported(POD, Load(block_size=BLOCK, num_blocks=101, started_at=2.0)),
        LoadReported(POD, Load(block_size=BLOCK, num_blocks=101, cache_queries=10)),
        EndpointUpserted(endpoint("pod-0", "10.0.0.1", uid="another")),
    ],
    ids=["another start", "a counter that went back", "another uid"],
)
def test_a_restart_under_the_same_name_is_noticed(rig, sign):
    rig.report("pod-0", block_size=BLOCK, num_blocks=101, started_at=1.0, cache_queries=800)
    serve(rig, "r1", ids(0, 800))
    assert rig.cached(ids(0, 800))["pod-0"] == 784
    rig.apply(sign)
    assert rig.cached(ids(0, 800))["pod-0"] == 0


def test_an_unreported_restart_is_noticed_within_three_requests(rig):
    serve(rig, "r1", ids(0, 400))
    serve(rig, "r2", ids(10_000, 400))
    serve(rig, "r3", ids(20_000, 400))
    serve(rig, "hit", ids(0, 400), Usage(400, 1, 384))
    needed = 0
    for start in (0, 10_000, 20_000):
        if rig.cached(ids(start, 400))["pod-0"]:
            needed += 1
            serve(rig, f"after {start}", ids(start, 400), Usage(400, 1, 0))
    assert needed <= 3
    assert rig.cached(ids(20_000, 400))["pod-0"] == 0


def test_a_restart_is_noticed_although_all_share_a_system_prompt(rig):
    system = ids(0, 160)
    for number in range(4):
        serve(rig, f"r{number}", [*system, *ids(10_000 * number + 10_000, 200)])
    serve(rig, "hit", [*system, *ids(10_000, 200)], Usage(360, 1, 352))
    for number, reported in enumerate((0, 160, 160)):
        prompt = [*system, *ids(10_000 * number + 10_000, 200)]
        serve(rig, f"after {number}", prompt, Usage(360, 1, reported))
    assert rig.cached([*system, *ids(40_000, 200)])["pod-0"] == 160


def test_the_endpoint_that_served_is_the_one_that_holds_it(rig):
    rig.send("pod-0", "r1", ids(0, 400))
    rig.apply(Served(RequestId("r1"), Target("10.0.0.2:8000")))
    rig.apply(Finished(RequestId("r1"), Usage(400, 1, 0)))
    assert rig.cached(ids(0, 400)) == {"pod-0": 0, "pod-1": 384}
