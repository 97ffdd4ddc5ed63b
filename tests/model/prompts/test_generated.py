"""Generated tokens: an engine keeps them, and the next turn of a conversation finds them."""

from gc import collect, get_objects

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.pods.pod import Pod
from epp.model.prompts.generated import GeneratedIndex
from epp.model.request import Prompt, RequestId, Usage
from epp.model.request_events import Aborted, Finished, FirstToken, Generated, Unobserved
from tests.model.invariants import check_invariants
from tests.model.rig import Rig
from tests.strategies import text

BLOCK = 16
USER, ANSWER, AGAIN = text(700, "u"), text(300, "a"), text(100, "v")


def chat(*messages):
    """Make a prompt of messages in text; each is cut where it ends."""
    parts = [f"\n<{'user' if not n % 2 else 'assistant'}>{m}" for n, m in enumerate(messages)]
    ends = [len("".join(parts[: n + 1])) for n in range(len(parts))]
    return Prompt("".join(parts).encode(), marks=ends)


def tokens(*messages):
    """Make a prompt of token ids; messages are lists of them."""
    ids = [each for message in messages for each in message]
    ends = [sum(map(len, messages[: n + 1])) for n in range(len(messages))]
    return Prompt(b"".join(i.to_bytes(4, "little") for i in ids), exact=True, marks=ends)


def serve(rig, identity, prompt, usage, pod="pod-0"):
    rig.send(pod, identity, prompts=(prompt,))
    rig.apply(Finished(RequestId(identity), usage))


def cached(rig, prompt):
    return rig.cached(prompts=(prompt,))


@pytest.mark.parametrize(
    ("prompt_tokens", "generated"), [(703, 300), (704, 1), (704, 2), (720, 289), (690, 311)]
)
def test_text_of_the_next_turn_hits_all_that_was_computed(prompt_tokens, generated):
    rig = Rig()
    answer = text(generated, "a")
    serve(rig, "r1", chat(USER), Usage(prompt_tokens, generated, 0))
    computed = prompt_tokens + generated - 1
    found = cached(rig, chat(USER, answer, AGAIN))
    assert found == {"pod-0": computed // BLOCK * BLOCK, "pod-1": 0}


def test_a_response_of_another_length_is_not_the_one_quoted():
    rig = Rig()
    serve(rig, "r1", chat(USER), Usage(700, 300, 0))
    assert cached(rig, chat(USER, text(30, "a"), AGAIN))["pod-0"] == 700 // BLOCK * BLOCK
    assert cached(rig, chat(USER, text(900, "a"), AGAIN))["pod-0"] == 700 // BLOCK * BLOCK
    assert cached(rig, chat(USER, ANSWER, AGAIN))["pod-0"] == 999 // BLOCK * BLOCK


@pytest.mark.parametrize("order", [("pod-0", "pod-1"), ("pod-1", "pod-0")])
def test_a_response_gets_its_hashes_where_it_was_generated(order):
    rig, generated = Rig(), {"pod-0": 40, "pod-1": 300}
    for pod in order:
        serve(rig, pod, chat(USER), Usage(700, generated[pod], 0), pod)
    found = cached(rig, chat(USER, ANSWER, AGAIN))
    assert found == {"pod-0": 700 // BLOCK * BLOCK, "pod-1": 999 // BLOCK * BLOCK}


def test_turn_after_turn_is_predicted_exactly():
    rig, messages, known = Rig(), [], 0
    for turn in range(8):
        messages.append(text(50 + 13 * turn, f"u{turn}"))
        prompt = chat(*messages)
        assert cached(rig, prompt)["pod-0"] == known // BLOCK * BLOCK
        # The server counts what the template adds, too: eight tokens a message.
        size = sum(len(m) // 4 for m in messages) + 8 * len(messages)
        generated = 20 + 31 * turn
        serve(rig, f"r{turn}", prompt, Usage(size, generated, known // BLOCK * BLOCK))
        messages.append(text(generated, f"a{turn}"))
        known = size + generated - 1


@given(
    st.integers(17, 200),
    st.integers(2, 200),
    st.integers(1, 60),
    st.booleans(),
)
def test_token_ids_of_the_next_turn_hit_as_vllm_says(first, generated, more, stopped):
    """After P prompt and G generated tokens, (P + G - 1) // block blocks are cached."""
    rig = Rig()
    user = list(range(first))
    answer = list(range(10_000, 10_000 + generated + (0 if stopped else 1)))
    serve(rig, "r1", tokens(user), Usage(first, generated, 0))
    whole = tokens(user, answer, [5] * more)
    hit = (first + generated - 1) // BLOCK
    most = (len(whole.data) // 4 - 1) // BLOCK
    assert cached(rig, whole)["pod-0"] == min(hit, most) * BLOCK


def test_token_ids_of_another_message_are_not_the_response():
    rig = Rig()
    serve(rig, "r1", tokens(list(range(100))), Usage(100, 60, 0))
    other = tokens(list(range(100)), list(range(64)), [1] * 20)
    assert cached(rig, other)["pod-0"] == 96


def test_a_prompt_that_differs_after_its_last_full_block_continues_nothing():
    rig = Rig()
    serve(rig, "r1", tokens(list(range(100))), Usage(100, 60, 0))
    other = tokens([*range(99), 7], list(range(60)), [1] * 20)
    assert cached(rig, other)["pod-0"] == 96


@pytest.mark.parametrize(("streamed", "quoted"), [(60, 60), (60, 57), (57, 60)])
def test_a_response_that_broke_off_is_found_as_far_as_it_was_seen(streamed, quoted):
    rig, user = Rig(), list(range(100))
    rig.send("pod-0", "r1", prompts=(tokens(user),))
    rig.apply(Aborted(RequestId("r1"), streamed))
    turn = tokens(user, list(range(1000, 1000 + quoted)), [5] * 30)
    hit = (100 + min(streamed, quoted) - 1) // BLOCK * BLOCK
    assert cached(rig, turn)["pod-0"] == hit


@pytest.mark.parametrize(
    ("quoted", "found"), [(10, 0), (30, 30), (90, 90), (100, 100), (390, 100), (410, 0)]
)
def test_a_response_that_was_not_observed_is_found_where_it_is_about_as_long(quoted, found):
    rig, user = Rig(), list(range(100))
    rig.send("pod-0", "r1", prompts=(tokens(user),), max_tokens=100)  # as many are expected
    rig.apply(FirstToken(RequestId("r1")))
    rig.apply(Unobserved(RequestId("r1")))
    rig.now += 60
    turn = tokens(user, list(range(1000, 1000 + quoted)), [5] * 30)
    assert cached(rig, turn)["pod-0"] == (100 + found - 1) // BLOCK * BLOCK


def test_what_is_generated_takes_room_while_it_streams():
    rig = Rig()
    rig.report("pod-0", block_size=BLOCK, num_blocks=101)
    serve(rig, "old", chat(text(700, "o")), Usage(700, 1, 0))
    rig.send("pod-0", "r1", prompts=(chat(text(700, "n")),))
    rig.apply(FirstToken(RequestId("r1")))
    before = cached(rig, chat(text(700, "o")))["pod-0"]
    rig.apply(Generated(RequestId("r1"), 640))
    after = cached(rig, chat(text(700, "o")))["pod-0"]
    assert before >= 640
    assert after < 300


def test_a_request_that_outgrows_the_cache_puts_the_last_one_back_in_line():
    rig = Rig()
    rig.report("pod-0", block_size=BLOCK, num_blocks=101)
    rig.send("pod-0", "first", prompts=(chat(text(700, "a")),))
    rig.send("pod-0", "last", prompts=(chat(text(700, "b")),))
    rig.apply(Generated(RequestId("first"), 400))
    assert rig.pod("pod-0").scheduler.waiting
    rig.apply(Aborted(RequestId("first"), 400))
    assert not rig.pod("pod-0").scheduler.waiting
    assert rig.in_flight("last").sequences[0].lease is not None


def test_the_oldest_responses_are_dropped_at_the_bound():
    rig = Rig()
    rig.fleet._prompts.generated = GeneratedIndex(room=2000)
    for number in range(300):
        serve(rig, f"r{number}", tokens([number] * 160), Usage(160, 40, 0))
    assert 20 < len(rig.fleet._prompts.generated._by_anchor) < 100
    assert cached(rig, tokens([0] * 160, [1] * 40, [5] * 30))["pod-0"] == 160
    assert cached(rig, tokens([299] * 160, [1] * 40, [5] * 30))["pod-0"] == 192


def test_generated_blocks_keep_no_removed_pod_alive():
    rig = Rig()
    serve(rig, "r1", chat(USER), Usage(700, 300, 0))
    gone = id(rig.pod("pod-0"))
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    collect()
    assert gone not in {id(each) for each in get_objects() if type(each) is Pod}
    assert cached(rig, chat(USER, ANSWER, AGAIN)) == {"pod-1": 0}


@pytest.mark.parametrize("ended", [True, False])
def test_what_a_restarted_engine_generated_is_gone(ended):
    rig = Rig()
    rig.report("pod-0", started_at=1.0)
    rig.send("pod-0", "r1", prompts=(chat(USER),))
    end = Finished(RequestId("r1"), Usage(700, 300, 0))
    if ended:
        rig.apply(end)
    rig.report("pod-0", started_at=2.0)
    if not ended:  # its end is seen late
        rig.apply(end)
    assert cached(rig, chat(USER, ANSWER, AGAIN))["pod-0"] == 0
    check_invariants(rig.fleet)
