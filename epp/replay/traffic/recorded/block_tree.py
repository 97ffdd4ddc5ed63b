"""Prompts as paths of a tree of blocks, each block with all that precedes it.

The blocks between two places at which prompts diverge or end always occur together. They become one
run of tokens, so a prompt of thousands of blocks is a few runs.
"""

from collections.abc import Sequence

from epp.replay.traffic.calls import Run, Runs

ROOT = 0


class BlockTree:
    """Blocks by their hashes. Nodes are numbered in order of arrival, parents before children."""

    def __init__(self) -> None:
        self._nodes: dict[int, int] = {}
        self._parents = [ROOT]
        self._jumps = [ROOT]
        self._children = [0]
        self._depths = [0]
        self._units = [0]
        self._tokens: list[int | None] = [0]
        self._ends = [True]
        self._above: list[int] = []

    def __len__(self) -> int:
        return len(self._parents)

    def add(self, parent: int, hashes: Sequence[int], lengths: Sequence[int]) -> int:
        """Add those blocks below a node that are not known; return the last one's node."""
        node = parent
        for block_hash, length in zip(hashes, lengths, strict=True):
            known = self._nodes.get(block_hash)
            if known is None:
                known = self._nodes[block_hash] = len(self._parents)
                self._parents.append(node)
                self._jumps.append(self._jump(node))
                self._children[node] += 1
                self._children.append(0)
                self._depths.append(self._depths[node] + 1)
                self._units.append(self._units[node] + length)
                self._tokens.append(None)
                self._ends.append(False)
            node = known
        return node

    def ancestor(self, node: int, depth: int) -> int:
        """Return the node that is this many blocks from the root. Raises `LookupError`."""
        if not 0 <= depth <= self._depths[node]:
            raise LookupError(f"it has no {depth} blocks")
        while self._depths[node] > depth:
            jump = self._jumps[node]
            node = jump if self._depths[jump] >= depth else self._parents[node]
        return node

    def _jump(self, parent: int) -> int:
        """Return the ancestor to which a child of a node jumps: a few steps then find any ancestor.

        Myers, "An applicative random-access stack" (1983).
        """
        jump = self._jumps[parent]
        further = self._jumps[jump]
        depths = self._depths
        alike = depths[parent] - depths[jump] == depths[jump] - depths[further]
        return further if alike else parent

    def units(self, node: int) -> int:
        """Return the length of a prompt up to a node, in its own unit."""
        return self._units[node]

    def path(self, node: int) -> list[int]:
        """Return the last nodes of the runs from this one up to the root, which is left out.

        After the first call, nothing may be added, ended or counted.
        """
        if not self._above:
            self._join()
        found = []
        while node != ROOT:
            found.append(node)
            node = self._above[node]
        return found

    def end(self, node: int) -> None:
        """Let a run end at a node."""
        self._ends[node] = True

    def count_tokens(self, node: int, tokens: int) -> None:
        """Record that the prompt that ends at a node has this many tokens.

        Known blocks keep their tokens; the others share the rest in proportion to their lengths.
        """
        fresh = []
        while self._tokens[node] is None:
            fresh.append(node)
            node = self._parents[node]
        if not fresh:
            return
        start, units = self.tokens(node), self._units[node]
        left = max(tokens - start, len(fresh))
        whole = self._units[fresh[0]] - units
        for each in fresh:
            self._tokens[each] = start + round(left * (self._units[each] - units) / whole)

    def tokens(self, node: int) -> int:
        """Return the tokens of a prompt up to a node; call `count_tokens` before."""
        return self._tokens[node] or 0

    def runs(self, node: int) -> Runs:
        """Return the prompt that ends at a node."""
        path = self.path(node)
        lengths = (self.tokens(each) - self.tokens(self._above[each]) for each in path)
        runs = [Run(each, length) for each, length in zip(path, lengths, strict=True) if length]
        return runs[::-1]

    def _join(self) -> None:
        """Find for each node the nearest node above it at which a run ends, or several begin."""
        self._above = [ROOT]
        for parent in self._parents[1:]:
            alone = self._children[parent] == 1 and not self._ends[parent]
            self._above.append(self._above[parent] if alone else parent)
