"""kubeai-chwbl: the rules of KubeAI's balance_chwbl.go, worked out by hand on its ring."""

import pytest

from epp.model.request import Prompt
from tests.policy.peers.desk import BLOCK, Desk, tokens

KIND = "kubeai-chwbl-scorer"


def desk(pods=3, **parameters):
    return Desk(KIND, pods, **parameters)


def order(at, *prompts, **more):
    """Name the pods in the order of the ring, by taking them away one after another."""
    found: list[int] = []
    pods = range(len(at.rig.fleet.endpoints))
    while len(found) < len(pods):
        left = tuple(f"10.0.0.{pod + 1}:8000" for pod in pods if pod not in found)
        chosen = at.decide(*prompts, subset=left, **more).endpoint.name
        found.append(int(chosen.removeprefix("pod-")))
    return found


def chosen(at, *prompts, **more):
    return int(at.decide(*prompts, **more).endpoint.name.removeprefix("pod-"))


def asking(text, *marks):
    return {"prompts": (Prompt(text.encode(), marks=marks),)}


def test_the_next_on_the_ring_is_chosen_whose_load_is_within_the_bound():
    """Of 9 requests at 3 pods the bound is (9 + 1) / 3 * 1.25 = 4.17: 4 are within it, 5 not."""
    at = desk()
    first, second, third = order(at, tokens(4))
    assert chosen(at, tokens(4)) == first
    loads = [0, 0, 0]
    loads[first], loads[second], loads[third] = 4, 4, 1
    at.load(*loads)
    assert chosen(at, tokens(4)) == first
    at.end()
    loads[first], loads[third] = 5, 0
    at.load(*loads)
    assert chosen(at, tokens(4)) == second
    at.end()
    loads[second] = 5
    at.load(*loads)  # of 10: 11 / 3 * 1.25 = 4.58
    assert chosen(at, tokens(4)) == third


def test_a_wider_bound():
    at = desk(pods=2, meanLoadFactor=150)
    first, _ = order(at, tokens(4))
    at.load(*[3 if pod == first else 0 for pod in range(2)])  # (3 + 1) / 2 * 1.5 = 3
    assert chosen(at, tokens(4)) == first
    at.load(*[1 if pod == first else 0 for pod in range(2)])  # 3.75
    assert chosen(at, tokens(4)) != first


def test_only_the_first_characters_are_the_key():
    """100 characters are 25 tokens: the second block, in which the 25th lies."""
    at = desk(pods=8)
    start = tokens(2)[: 2 * BLOCK]
    orders = [order(at, start + tokens(9, 1000 * rest)) for rest in range(3)]
    assert orders[0] == orders[1] == orders[2]
    other = [*start[:20], 7, *start[21:]]
    others = [order(at, other + tokens(9, 1000 * rest)) for rest in range(3)]
    assert others[0] == others[1] == others[2] != orders[0]


@pytest.mark.parametrize("exact", [True, False])
def test_a_conversation_keeps_its_key_and_others_have_theirs(exact):
    """The system prompt is the same; the users' first messages are the keys."""
    at = desk(pods=8)
    system = "\n<system>" + "You are kind. " * 40
    orders = []
    for user in ("alpha", "omega"):
        asked = f"\n<user>{user} " + "asks something that takes a hundred characters " * 5
        more = "\n<assistant>An answer." * 30 + "\n<user>Another question."
        short, long = system + asked, system + asked + more
        marks = [len(system), len(system) + len(asked), *(len(long) - 24, len(long))]
        if exact:
            shorter, longer = (
                (Prompt(b"".join(ord(each).to_bytes(4, "little") for each in text), True, ends),)
                for text, ends in ((short, marks[:2]), (long, marks))
            )
        else:
            shorter, longer = (
                (Prompt(short.encode(), marks=marks[:2]),),
                (Prompt(long.encode(), marks=marks),),
            )
        orders.append(order(at, prompts=shorter))
        assert order(at, prompts=longer) == orders[-1]
    assert orders[0] != orders[1]


def test_tools_come_before_the_user_without_being_the_key():
    at = desk(pods=8)
    head = '[{"type": "function"}]' * 20
    orders = []
    for user in ("alpha", "omega"):
        system = head + "\n<system>Be brief."
        text = system + f"\n<user>{user}"
        orders.append(order(at, **asking(text, len(head), len(system), len(text))))
    assert orders[0] != orders[1]


def test_prompts_of_less_than_a_block_count_whole():
    at = desk(pods=8)
    for short, other in (("short", "other"), ([1, 2, 3], [1, 2, 4])):
        assert order(at, short) == order(at, short) != order(at, other)


def test_an_endpoint_that_goes_leaves_the_ring():
    at = desk()
    first, second, third = order(at, tokens(4))
    ring = at.scorer._ring
    at.remove(first)
    assert len([*ring.walk(0)]) == 2
    assert chosen(at, tokens(4)) == second
    assert at.scores(tokens(4)) == {f"pod-{second}": 1, f"pod-{third}": 0}
