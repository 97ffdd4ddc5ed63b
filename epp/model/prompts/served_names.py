"""Names of models that share one cache, by the lists of all endpoints.

vLLM can serve a model under several names. They are not part of its block hashes: what a request
for one name cached, a request for another hits.

Fleets list thousands of adapters, which come and go: a list that changes is compared with the one
before it, and other lists are only read for names that have become one, or no longer are.
"""

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from epp.model.prompts.block_hasher import BlockHasher


class _List(NamedTuple):
    """The models of an endpoint, and its further names of models, each with the first name."""

    models: frozenset[str] = frozenset()
    firsts: Mapping[str, str] = {}

    def has_first(self, name: str) -> bool:
        return name in self.models and name not in self.firsts

    def distinguishes(self, names: AbstractSet[str]) -> bool:
        """Return whether it has some of these names as different models."""
        firsts, models = self.firsts, self.models
        few, many = (names, models) if len(names) < len(models) else (models, names)
        return len({firsts.get(each, each) for each in few if each in many}) > 1


_NOTHING: Final = _List()


class _Group:
    """Names that some list has as one model; `apart` counts the lists that have them as several."""

    __slots__ = ("apart", "names")

    def __init__(self, names: set[str]) -> None:
        self.names: Final = names
        self.apart = 0


class ServedNames:
    """Gives the hasher of prompts the names that are one model. `endpoint_id`s are of any type.

    Names that are one model at some endpoint stay apart if another one serves them as two. They
    are hashed as a name that some list has first: what was cached for that name stays known when
    others are added.
    """

    def __init__(self, hasher: BlockHasher) -> None:
        self._hasher = hasher
        self._lists: dict[object, _List] = {}
        self._first_in: Counter[str] = Counter()  # how many lists have a name first
        self._pairs: Counter[tuple[str, str]] = Counter()  # how many have one as the other's name
        self._linked: dict[str, set[str]] = {}  # the names that each has such a pair with
        self._groups: dict[str, _Group] = {}
        self._first_names: dict[str, str] = {}

    def add(self, endpoint_id: object, models: frozenset[str], aliases: Mapping[str, str]) -> None:
        """Record that an endpoint lists models, in place of its last list."""
        before = self._lists.get(endpoint_id, _NOTHING)
        after = self._lists[endpoint_id] = _List(models, dict(aliases))
        self._change(before, after)

    def remove(self, endpoint_id: object) -> None:
        """Forget an endpoint's list, if there is one."""
        self._change(self._lists.pop(endpoint_id, _NOTHING), _NOTHING)

    def _change(self, before: _List, after: _List) -> None:
        pairs = before.firsts.items() ^ after.firsts.items()
        names = (before.models ^ after.models).union(name for name, _ in pairs)
        for name in names:
            self._first_in[name] += after.has_first(name) - before.has_first(name)
            if not self._first_in[name]:
                del self._first_in[name]
        torn = {name for pair in pairs if self._count(pair, after) for name in pair}
        torn.update(*[self._groups[name].names for name in torn if name in self._groups])
        touched = {self._groups[name] for name in names - torn if name in self._groups}
        for group in touched:
            group.apart += after.distinguishes(group.names) - before.distinguishes(group.names)
        self._name(torn, touched | self._regroup(torn))

    def _count(self, pair: tuple[str, str], after: _List) -> bool:
        """Return whether no list had a pair of names before, or no list has it now."""
        name, first = pair
        added = after.firsts.get(name) == first
        either = min(pair), max(pair)  # whichever is first
        self._pairs[either] += 1 if added else -1
        if self._pairs[either] != int(added):  # neither the first list nor the last
            return False
        if not added:
            del self._pairs[either]
        for one, other in (pair, (first, name)):
            linked = self._linked.setdefault(one, set())
            (linked.add if added else linked.discard)(other)
            if not linked:
                del self._linked[one]
        return True

    def _regroup(self, names: set[str]) -> set[_Group]:
        """Return the groups of names whose pairs have changed, with all that were grouped."""
        found = set()
        for name in names:
            self._groups.pop(name, None)
        for name in names & self._linked.keys():
            if name in self._groups:
                continue
            group, ends = _Group({name}), [name]
            while ends:
                more = self._linked[ends.pop()] - group.names
                group.names.update(more)
                ends += more
            group.apart = sum(each.distinguishes(group.names) for each in self._lists.values())
            self._groups.update(dict.fromkeys(group.names, group))
            found.add(group)
        return found

    def _name(self, names: set[str], groups: set[_Group]) -> None:
        """Choose the first names of groups; the other `names` stand for themselves."""
        chosen: dict[str, str | None] = dict.fromkeys(names)
        for group in groups:
            first = None
            if not group.apart:
                first = min(group.names & self._first_in.keys(), default=min(group.names))
            chosen.update(dict.fromkeys(group.names, first))
        changed = {
            name: first for name, first in chosen.items() if self._first_names.get(name) != first
        }
        for name, each in changed.items():
            if each is None:
                del self._first_names[name]
            else:
                self._first_names[name] = each
        if changed:
            self._hasher.share_names(self._first_names)
