"""KV events that lead to no prompt: to text while the render endpoint is down, and to media."""

import pytest

from epp.model.kv_changes import CacheChanged, CacheFeedUp
from epp.model.request import Prompt, RequestId
from epp.model.request_events import Finished, FirstToken
from epp.protocol.bodies.token_prompts import packed, with_hashes
from tests.kvpublisher import payload, read_batch, stored
from tests.model.invariants import check_invariants
from tests.model.rig import Rig
from tests.model.simulated_fleet import BLOCK, SimulatedFleet

REQUESTS = 250
PHASES = (True, False, True)
"""Whether prompts come as token ids, by phase."""


def played(*, events, seed):
    fleet = SimulatedFleet(events=events, seed=seed, alive=28)
    measured = [fleet.play(REQUESTS, exact=exact) for exact in PHASES]
    check_invariants(fleet.fleet)
    return measured


@pytest.mark.parametrize("seed", [1, 3])
def test_events_cost_text_nothing_and_know_its_tokens_afterwards(seed):
    with_events, without = played(events=True, seed=seed), played(events=False, seed=seed)
    _, text, tokens = with_events
    assert text.share >= without[1].share - 0.01
    assert text.error <= without[1].error + 0.005
    # Without events nothing is known of the tokens of text; with them, all but what is on its way.
    assert tokens.share >= without[2].share - 0.01
    assert tokens.error <= without[2].error / 2


IMAGE, BLOCKS = 9, 60
"""The token that stands for an image, and the full blocks of a prompt with one."""


def pictured(number):
    """A prompt that starts with an image, and the engine's event when it stores it (vLLM 0.32)."""
    ids = [IMAGE] * 800 + [number * 1000 + at for at in range(BLOCKS * BLOCK + 1 - 800)]
    prompt = Prompt(with_hashes(packed(ids), [(0, 800, str(number))]), exact=True, multimodal=True)
    keys = [[(str(number), -BLOCK * at)] if BLOCK * at < 800 else None for at in range(BLOCKS)]
    hashes = range(100 * number, 100 * number + BLOCKS)
    return prompt, stored(hashes, tokens=ids[: BLOCKS * BLOCK], extra_keys=keys)


def test_prompts_with_media_take_their_space_once():
    rig = Rig(pods=1)
    rig.report("pod-0", engine="vllm", block_size=BLOCK, num_blocks=3 * BLOCKS + 2)
    endpoint_id = rig.pod("pod-0").endpoint.id
    rig.apply(CacheFeedUp(endpoint_id, complete=True))
    asked = [pictured(number) for number in range(3)]
    for number, (prompt, event) in enumerate(asked):
        rig.send("pod-0", f"r{number}", prompts=(prompt,))
        rig.apply(FirstToken(RequestId(f"r{number}")))
        rig.apply(CacheChanged(endpoint_id, read_batch(payload(event)).changes))
        rig.apply(Finished(RequestId(f"r{number}")))
    found = [rig.cached(prompts=(prompt,))["pod-0"] for prompt, _ in asked]
    assert found == [BLOCKS * BLOCK] * 3
