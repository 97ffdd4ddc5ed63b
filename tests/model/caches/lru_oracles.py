"""Whole-prompt cache, llm-d-router's index and vLLM's offloading, written down a second time.

Lists in the order of age, nothing else; slow and obvious on purpose.
"""


def common(left, right):
    pairs = zip(left, right, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right))
    )


class PromptOracle:
    """Prompts as lists of blocks of one size, the oldest first; those under way apart."""

    def __init__(self, blocks):
        self.total = blocks
        self.entries = []
        self.under_way = []
        self.came = []  # all there ever were, in their order

    @property
    def free(self):
        return self.total - sum(map(len, self.under_way))

    def found(self):
        prompts = [*self.entries, *self.under_way]
        return {tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)}

    def hits(self, prompt):
        return max([common(prompt, each) for each in (*self.entries, *self.under_way)], default=0)

    def start(self, prompt):
        """False: no room."""
        if len(prompt) > self.free:
            return False
        best = max([common(prompt, each) for each in self.entries], default=0)
        if best and best == self.hits(prompt):
            self.renew([each for each in self.entries if common(prompt, each) == best])
        self.under_way.append(prompt)
        self.came.append(prompt)
        self.trim()
        return True

    def renew(self, candidates):
        """Make the one of them that came last the newest."""
        last = [each for each in self.came if any(each is one for one in candidates)][-1]
        self.entries = [*(each for each in self.entries if each is not last), last]

    def extend(self, prompt, more):
        """False: no room."""
        if len(more) > self.free:
            return False
        prompt += more
        self.trim()
        return True

    def end(self, prompt):
        self.under_way = [each for each in self.under_way if each is not prompt]
        holder = [each for each in self.entries if common(prompt, each) == len(prompt)]
        if holder:
            self.renew(holder)
            return
        self.entries = [each for each in self.entries if common(prompt, each) < len(each)]
        self.entries.append(prompt)
        self.trim()

    def trim(self):
        while sum(map(len, self.entries)) > self.free:
            self.entries.pop(0)


class LlmDRouterOracle:
    """Hashes of 64 tokens, counted: four blocks of sixteen each; whole ones only."""

    def __init__(self, entries):
        self.entries = entries
        self.order = []

    def send(self, blocks, partial):
        groups = [tuple(blocks[: at + 4]) for at in range(0, len(blocks), 4)]
        if partial and len(blocks) % 4 == 0 and blocks:
            groups.append((*blocks, None))
        for group in groups:
            if group in self.order:
                self.order.remove(group)
            self.order.append(group)
            if len(self.order) > self.entries:
                self.order.pop(0)

    def found(self):
        whole = [group for group in self.order if len(group) % 4 == 0]
        return {group[:end] for group in whole for end in range(len(group) - 3, len(group) + 1)}


class OffloadOracle:
    """Keys of blocks in host memory, the oldest first."""

    def __init__(self, chunks):
        self.chunks = chunks
        self.order = []

    def offer(self, keys):
        """Return what was stored."""
        new = [key for key in keys if key not in self.order]
        lacking = len(self.order) + len(new) - self.chunks
        idle = [key for key in self.order if key not in keys]
        if lacking > len(idle):
            return []
        for key in idle[: max(0, lacking)]:
            self.order.remove(key)
        self.order += new
        return new

    def finish(self, keys):
        for key in reversed([key for key in keys if key in self.order]):
            self.order.remove(key)
            self.order.append(key)
