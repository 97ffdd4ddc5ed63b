"""The index of blocks that were sent: against a table of all prefixes, and what it forgets."""

from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.policy.peers.memory.sent_blocks import SentBlocks
from tests.model.rig import Rig
from tests.policy.peers.desk import BLOCK
from tests.policy.started import Context

PODS = ["pod-0", "pod-1", "pod-2"]


class Shelf:
    """An index over three pods. Prompts are words: of each letter a block."""

    def __init__(self, most=1000, **more):
        self.rig = Rig(0)
        self.sent = SentBlocks(Context(fleet=self.rig.fleet), most, **more)
        for number, name in enumerate(PODS):
            self.rig.add(name, f"10.0.0.{number + 1}")

    def send(self, *sendings):
        for word, pod in sendings:
            self.rig.send(pod, f"r{next(self.rig.numbers)}", prompt(word))

    def match(self, word, among=PODS):
        """Return how many letters of a word each pod has, by its name."""
        ids = {EndpointId(f"default/{pod}"): pod for pod in among}
        chain = self.rig.quote("asked", prompt(word)).chains[0]
        matched = self.sent.match(chain, ids.keys(), self.rig.now)
        return {ids[endpoint]: length for endpoint, length in matched.items()}


def prompt(word):
    return [ord(letter) for letter in word for _ in range(BLOCK)]


def shared(one, other):
    return sum(one[:end] == other[:end] for end in range(1, min(len(one), len(other)) + 1))


words = st.text("ab", min_size=1, max_size=6)
sendings = st.lists(st.tuples(words, st.sampled_from(PODS)), max_size=20)


@given(sendings, words, st.sets(st.sampled_from(PODS)), st.booleans())
def test_each_endpoint_has_the_longest_prefix_that_was_sent_to_it(sent, asked, among, last):
    shelf = Shelf(heads_last=last)
    shelf.send(*sent)
    longest = {
        pod: max((shared(word, asked) for word, to in sent if to == pod), default=0)
        for pod in among
    }
    assert shelf.match(asked, among) == {pod: length for pod, length in longest.items() if length}
    assert len(shelf.sent) == len({word[: end + 1] for word, _ in sent for end in range(len(word))})


@given(sendings, words, st.sampled_from(PODS))
def test_an_endpoint_that_goes_or_changes_is_forgotten(sent, asked, gone):
    shelf, others = Shelf(), Shelf()
    shelf.send(*sent)
    others.send(*((word, pod) for word, pod in sent if pod != gone))
    shelf.rig.add(gone, "10.0.0.9")  # another engine of its name
    assert shelf.match(asked) == others.match(asked)
    shelf.send((asked, gone))
    assert shelf.match(asked)[gone] == len(asked)
    shelf.rig.apply(EndpointRemoved(EndpointId(f"default/{gone}")))
    assert shelf.match(asked) == others.match(asked)


def test_blocks_remember_none_that_are_gone_when_they_are_sent_again():
    shelf = Shelf()
    for number in range(50):
        shelf.rig.add("pod-0", f"10.0.1.{number}")  # another engine of its name
        shelf.send(("a", "pod-0"), ("a", "pod-1"))
    ((holders, _),) = shelf.sent._blocks.values()
    assert len(holders) == 2


def test_what_was_sent_the_longest_ago_goes_first():
    shelf = Shelf(most=4)
    shelf.send(("aaa", "pod-0"), ("b", "pod-0"), ("cc", "pod-0"))  # 6 blocks: a and aa go
    assert len(shelf.sent) == 4
    assert [shelf.match(word) for word in ("aaa", "b", "cc")] == [{}, {"pod-0": 1}, {"pod-0": 2}]


def test_where_heads_go_last_the_ends_of_prompts_go_first():
    shelf = Shelf(most=4, heads_last=True)
    shelf.send(("aaa", "pod-0"), ("b", "pod-0"), ("cc", "pod-0"))  # 6 blocks: aaa and aa go
    assert [shelf.match(word) for word in ("aaa", "b", "cc")] == [
        {"pod-0": 1},
        {"pod-0": 1},
        {"pod-0": 2},
    ]


def test_a_block_lives_as_long_as_it_was_sent_to_anybody():
    shelf = Shelf(seconds=60)
    shelf.send(("aa", "pod-0"))
    shelf.rig.now += 50
    shelf.send(("ab", "pod-1"))  # which has the first block in common
    shelf.rig.now += 10
    assert shelf.match("aa") == {"pod-0": 2, "pod-1": 1}
    shelf.rig.now += 1
    assert shelf.match("aa") == {"pod-0": 1, "pod-1": 1}
    shelf.rig.now += 50
    assert shelf.match("aa") == {}
    assert len(shelf.sent) == 0
    shelf.send(("aa", "pod-0"))
    shelf.rig.now += 61
    shelf.send(("aa", "pod-1"))  # of which nobody has asked before
    assert shelf.match("aa") == {"pod-1": 2}
