"""Which names of models stand for one cache, beside a search of all pairs."""

from itertools import combinations

from hypothesis import example, given
from hypothesis import strategies as st

from epp.model.prompts.block_hasher import BlockHasher
from epp.model.prompts.served_names import ServedNames
from tests.strategies import SECRET

NAMES = "abcdef"


@st.composite
def lists(draw):
    """What an endpoint lists: some of its models have other names."""
    models = draw(st.sets(st.sampled_from(NAMES)))
    aliases: dict[str, str] = {}
    for name in sorted(models):
        first = draw(st.sampled_from(sorted(models)))
        if name != first and first not in aliases and name not in aliases.values():
            aliases[name] = first
    return frozenset(models), frozenset(aliases.items())


def listed_one_after_the_other(changes):
    """Return the last lists of endpoints, and the name as which each name is hashed then.

    `changes` are lists of endpoints; one without a list is gone.
    """
    hasher, now = BlockHasher(SECRET), dict[int, object]()
    served = ServedNames(hasher)
    for place, listed in changes:
        if listed is None:
            now.pop(place, None)
            served.remove(place)
        else:
            now[place] = listed
            served.add(place, listed[0], dict(listed[1]))
    own = {BlockHasher(SECRET).root(name, "", exact=False): name for name in NAMES}
    found = {name: own[hasher.root(name, "", exact=False)] for name in NAMES}
    return list(now.values()), found


def linked(listed):
    """The pairs of names that are one by the lists, whatever keeps them apart."""
    pairs = {(each, each) for each in NAMES}
    for _, aliases in listed:
        pairs |= {pair for name, first in aliases for pair in ((name, first), (first, name))}
    for _ in NAMES:
        pairs |= {(one, last) for one, middle in pairs for other, last in pairs if middle == other}
    return pairs


def list_of(models, **aliases):
    return frozenset(models), frozenset(aliases.items())


@example([(0, list_of("ab", a="b")), (1, list_of("ab"))])
@example([(0, list_of("ab", a="b")), (1, list_of("ab")), (1, None)])
@example([(0, list_of("abc", a="b", c="b")), (1, list_of("bc", c="b")), (0, None)])
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | lists()), max_size=12))
def test_names_are_one_if_lists_say_so_and_none_says_otherwise(changes):
    listed, found = listed_one_after_the_other(changes)
    pairs = linked(listed)
    for one, other in combinations(NAMES, 2):
        group = {each for each in NAMES if (one, each) in pairs}
        firsts = [
            {dict(aliases).get(each, each) for each in models & group} for models, aliases in listed
        ]
        together = other in group and all(len(each) <= 1 for each in firsts)
        assert (found[one] == found[other]) is together
    assert all(found[first] == first for first in found.values())


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | lists()), max_size=12))
def test_the_name_of_all_is_one_that_a_list_has_first(changes):
    listed, found = listed_one_after_the_other(changes)
    for first in found.values():
        group = {each for each, other in found.items() if other == first}
        heads = [
            dict(aliases).get(each, each) for models, aliases in listed for each in models & group
        ]
        assert first == (min(heads) if len(group) > 1 else min(group))


class Name(str):
    """Counts how often any is looked up."""

    __slots__ = ()
    times = 0

    def __hash__(self):
        Name.times += 1
        return super().__hash__()


def test_an_adapter_that_is_loaded_has_no_other_list_read():
    served = ServedNames(BlockHasher(SECRET))

    def lists_adapters(place, numbers):  # as SGLang, which serves each by two names
        aliases: dict[str, str] = {Name(f"llama:{number}"): Name(number) for number in numbers}
        served.add(place, frozenset({Name("llama"), *aliases, *aliases.values()}), aliases)

    for place in range(100):
        lists_adapters(place, range(place, place + 50))
    for change in (
        lambda: lists_adapters(7, range(7, 58)),
        lambda: lists_adapters(7, range(8, 58)),
        lambda: served.remove(8),
        lambda: lists_adapters(8, range(8, 58)),
    ):
        Name.times = 0
        change()
        assert 0 < Name.times < 100 * 50
