"""Changes of content: net between two questions, whenever they are asked."""

from hypothesis import given
from hypothesis import strategies as st

from epp.model.caches.content_changes import ContentChanges
from epp.model.prompts.hashing import BlockHash


@given(st.lists(st.tuples(st.sampled_from(["store", "evict", "ask"]), st.integers(0, 5))))
def test_whoever_follows_the_changes_knows_what_is_held(steps):
    held: set[BlockHash] = set()
    followed: set[BlockHash] = set()
    changes = ContentChanges(held.__contains__)
    for step, number in [*steps, ("ask", 0)]:
        key = BlockHash(number)
        if step == "store":
            held.add(key)
            changes.record_stored([key])
        elif step == "evict":
            held.discard(key)
            changes.record_evicted([key])
        else:
            gone, came = changes.take_evicted(), changes.take_stored()
            assert not {*gone} & {*came}
            followed = (followed - {*gone}) | {*came}
    assert followed == held


def test_a_block_that_came_and_went_between_two_calls_is_not_reported():
    kept, gone = BlockHash(1), BlockHash(2)
    changes = ContentChanges({kept}.__contains__)
    changes.record_stored([kept, gone, kept])
    changes.record_evicted([gone])
    assert (changes.take_stored(), changes.take_evicted()) == ([kept], [gone])
    assert (changes.take_stored(), changes.take_evicted()) == ([], [])
