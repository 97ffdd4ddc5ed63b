"""Which names of models stand for one cache, beside a search of all pairs."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from epp.model.prompts.served_names import first_names

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


def linked(listed):
    """The pairs of names that are one by the lists, whatever keeps them apart."""
    pairs = {(each, each) for each in NAMES}
    for _, aliases in listed:
        pairs |= {pair for name, first in aliases for pair in ((name, first), (first, name))}
    for _ in NAMES:
        pairs |= {(one, last) for one, middle in pairs for other, last in pairs if middle == other}
    return pairs


@given(st.lists(lists(), max_size=4))
def test_names_are_one_if_lists_say_so_and_none_says_otherwise(listed):
    found, pairs = first_names(listed), linked(listed)
    for one, other in combinations(NAMES, 2):
        group = {each for each in NAMES if (one, each) in pairs}
        firsts = [
            {dict(aliases).get(each, each) for each in models & group} for models, aliases in listed
        ]
        together = other in group and all(len(each) <= 1 for each in firsts)
        assert (one in found and found[one] == found.get(other)) is together
    assert all(found[first] == first for first in found.values())
