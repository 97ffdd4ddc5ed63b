"""Names of models that stand for one cache, by what all endpoints list.

vLLM can serve a model under several names. They are not part of its block hashes: what a request
for one name cached, a request for another hits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from epp.model.prompts.block_hasher import BlockHasher

_List = tuple[frozenset[str], frozenset[tuple[str, str]]]
"""The models of an endpoint, and those that are other names, each with the first name."""


class ServedNames:
    """Tells the hasher of prompts which names are one. `endpoint_id`s are of any kind."""

    def __init__(self, hasher: BlockHasher) -> None:
        self._hasher = hasher
        self._lists: dict[object, _List] = {}
        self._differing: Counter[_List] = Counter()
        self._first_names: dict[str, str] = {}

    def add(self, endpoint_id: object, models: frozenset[str], aliases: Mapping[str, str]) -> None:
        """Take in that an endpoint lists models, in place of its last list."""
        before = self._lists.get(endpoint_id)
        listed = self._lists[endpoint_id] = models, frozenset(aliases.items())
        if before != listed:
            self._differing[listed] += 1
            self._update(self._forget(before) or self._differing[listed] == 1)

    def remove(self, endpoint_id: object) -> None:
        """Forget an endpoint's list, if there is one."""
        self._update(self._forget(self._lists.pop(endpoint_id, None)))

    def _forget(self, listed: _List | None) -> bool:
        """Return whether no other endpoint lists the same."""
        if listed is None:
            return False
        self._differing[listed] -= 1
        if self._differing[listed]:
            return False
        del self._differing[listed]
        return True

    def _update(self, differ: bool) -> None:  # noqa: FBT001 (for itself)
        found = first_names(self._differing) if differ else self._first_names
        if found != self._first_names:
            self._first_names = found
            self._hasher.share_names(found)


def first_names(lists: Iterable[_List]) -> dict[str, str]:
    """Return the names that share a cache, each with the one that stands for all of them.

    Names that are one at some endpoint stay apart if another serves them as two.
    """
    read = [(models, dict(aliases)) for models, aliases in lists]
    groups: dict[str, set[str]] = {}
    for _, firsts in read:
        here: dict[str, set[str]] = {}
        for name, first in firsts.items():
            if name not in groups or groups[name] is not groups.get(first):
                here.setdefault(first, {first}).add(name)
        for names in here.values():
            met = {id(groups[each]): groups[each] for each in names if each in groups}
            names.update(*met.values())
            groups.update(dict.fromkeys(names, names))
    apart: set[int] = set()
    for models, firsts in read:
        known: dict[int, str] = {}
        for name in models & groups.keys():
            group, first = id(groups[name]), firsts.get(name, name)
            if known.setdefault(group, first) != first:
                apart.add(group)
    one = {id(each): each for each in groups.values() if id(each) not in apart}
    return {name: first for each in one.values() for first in [min(each)] for name in each}
