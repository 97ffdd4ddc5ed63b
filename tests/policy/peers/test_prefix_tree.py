"""The tree of prompts that were sent: against a table of all prefixes, and what eviction leaves."""

from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import EndpointId
from epp.policy.peers.memory.prefix_tree import PrefixTree
from tests.policy.peers.desk import known_nodes

NAMES = X, Y, Z = [EndpointId(each) for each in "xyz"]
words = st.text("ab", min_size=1, max_size=7)
names = st.sampled_from(NAMES)
sent = st.lists(st.tuples(words, names), max_size=25)


def blocks(word):
    """One block a letter; a block's hash tells all that precedes it."""
    return [int("1" + each.translate(BITS), 2) for each in prefixes(word)]


BITS = str.maketrans("ab", "01")


def insert(tree, word, name):
    """Blocks are 10 long."""
    return tree.insert(blocks(word), range(10, 10 * len(word) + 1, 10), name)


def prefixes(word):
    return [word[:end] for end in range(1, len(word) + 1)]


@given(sent, words)
def test_the_longest_prefix_is_found_with_the_endpoint_that_had_it_first(prompts, asked):
    tree = PrefixTree()
    first: dict[str, EndpointId] = {}
    for word, name in prompts:
        insert(tree, word, name)
        for each in prefixes(word):
            first.setdefault(each, name)
    known = [each for each in prefixes(asked) if each in first]
    found = tree.match(blocks(asked))
    assert found.length == 10 * len(known)
    assert found.endpoints[:1] == [first[each] for each in known[-1:]]
    for name in NAMES:
        own = {each for word, sender in prompts if sender == name for each in prefixes(word)}
        assert tree.length(name) == 10 * len(own)


@given(sent, names, st.integers(0, 200))
def test_eviction_keeps_whole_prefixes_of_what_came_last(prompts, name, most):
    tree = PrefixTree()
    for word, sender in prompts:
        insert(tree, word, sender)
    others = {each: tree.length(each) for each in NAMES if each != name}
    before = tree.length(name)
    tree.evict(name, most)
    assert tree.length(name) <= min(most, before)
    assert {each: tree.length(each) for each in others} == others
    last = [word for word, sender in prompts if sender == name][-1:]
    if last and tree.length(name) >= 10 * len(last[0]):
        assert tree.match(blocks(last[0])).length == 10 * len(last[0])
    for each in NAMES:
        tree.remove(each)
        assert tree.length(each) == 0
    assert known_nodes(tree) == 0


def test_the_least_recent_goes_first_with_what_only_it_needed():
    """`aaa` and `aab` share `aa`, at which no prompt ends; `b` was sent again after them."""
    tree = PrefixTree()
    for word in ("b", "aaa", "aab", "b"):
        insert(tree, word, X)
    tree.evict(X, 40)  # of 50: aaa goes, aa stays below aab
    assert [tree.match(blocks(each)).length for each in ("aaa", "aab", "b")] == [20, 30, 10]
    tree.evict(X, 20)  # aab goes, and aa with it
    assert [tree.match(blocks(each)).length for each in ("aaa", "aab", "b")] == [0, 0, 10]


def test_a_prefix_goes_on_with_another_endpoint_that_has_it():
    tree = PrefixTree()
    insert(tree, "aa", X)
    insert(tree, "aab", Y)
    assert tree.match(blocks("aaa")) == (20, [X, Y])
    tree.remove(X)
    assert tree.match(blocks("aaa")) == (20, [Y])
    insert(tree, "aa", X)  # another one of its name
    assert tree.match(blocks("aaa")) == (20, [Y, X])


@given(sent, st.sampled_from(NAMES), words)
def test_an_endpoint_that_is_gone_counts_no_more_and_is_swept_out(prompts, gone, asked):
    tree, others = PrefixTree(), PrefixTree()
    for word, name in prompts:
        insert(tree, word, name)
        if name != gone:
            insert(others, word, name)
    tree.remove(gone)
    found, wanted = tree.match(blocks(asked)), others.match(blocks(asked))
    assert (found.length, set(found.endpoints)) == (wanted.length, set(wanted.endpoints))
    assert (tree.length(gone), tree.blocks(blocks(asked), gone)) == (0, 0)
    for _ in range(len(prompts) + 1):
        insert(tree, "a", next(name for name in NAMES if name != gone))
    assert nodes(tree) == known_nodes(tree) + 1  # the root, and those that some endpoint has


def nodes(tree):
    """Return how many nodes a tree has, whoever has them."""
    waiting, count = [tree._root], 0
    while waiting:
        waiting += waiting.pop().children.values()
        count += 1
    return count


@given(sent, words, names)
def test_the_blocks_that_an_endpoint_has_are_counted(prompts, asked, name):
    tree = PrefixTree()
    for word, sender in prompts:
        insert(tree, word, sender)
    own = {each for word, sender in prompts if sender == name for each in prefixes(word)}
    assert tree.blocks(blocks(asked), name) == len(
        [each for each in prefixes(asked) if each in own]
    )


@given(sent, st.data())
def test_what_is_forgotten_leaves_what_others_end_at(prompts, data):
    tree = PrefixTree()
    held = {(name, word): insert(tree, word, name) for word, name in prompts}
    gone = data.draw(st.sets(st.sampled_from(sorted(held)))) if held else set()
    for name, word in gone:
        tree.forget(held[name, word], tree.tenant(name))
        tree.forget(held[name, word], tree.tenant(name))
    for name in NAMES:
        left = {each for own, word in held.keys() - gone if own == name for each in prefixes(word)}
        assert tree.length(name) == 10 * len(left)
