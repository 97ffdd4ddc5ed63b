"""SGLang's radix cache written down a second time: token ids, one slot a token, no hashes.

From the published rules (`radix_cache.py`, `evict_policy.py`, `allocation.py`, `common.py` of
SGLang 0.5.23), slow and obvious on purpose: every eviction looks at every leaf.
"""

KEYS = {
    "lru": lambda node: node.used,
    "lfu": lambda node: (node.hits, node.used),
    "fifo": lambda node: node.born,
    "mru": lambda node: -node.used,
    "filo": lambda node: -node.born,
    "priority": lambda node: (node.priority, node.used),
    "slru": lambda node: (1 if node.hits >= 2 else 0, node.used),
}


class Node:
    def __init__(self, parent, tokens, now):
        self.parent, self.tokens = parent, tokens
        self.children = []
        self.used = self.born = now
        self.hits = self.locks = self.priority = 0


class Request:
    def __init__(self, prompt, hit, node):
        self.prompt, self.output, self.hit, self.node = list(prompt), [], hit, node
        self.slots = 0  # tokens of space outside the tree
        self.inserted = 0

    @property
    def computed(self):
        return self.prompt + self.output[:-1]


def shared(left, right):
    pairs = zip(left, right, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right))
    )


class RadixOracle:
    def __init__(self, capacity, page, strategy):
        self.capacity, self.page, self.key = capacity, page, KEYS[strategy]
        self.time = 0
        self.root = Node(None, [], 0)
        self.running = []

    # What it holds.

    def nodes(self, node=None):
        for child in (node or self.root).children:
            yield child
            yield from self.nodes(child)

    @property
    def available(self):
        used = sum(len(node.tokens) for node in self.nodes())
        return self.capacity - used - sum(request.slots for request in self.running)

    @property
    def evictable(self):
        return sum(len(node.tokens) for node in self.nodes() if not node.locks)

    def sequences(self):
        """All that can be found: every path, cut at every page."""
        found = set()
        for node in self.nodes():
            path, each = node.tokens, node.parent
            while each is not None:
                path, each = each.tokens + path, each.parent
            start = len(path) - len(node.tokens)
            for end in range(start + self.page, len(path) + 1, self.page):
                found.add(tuple(path[:end]))
        return found

    # Walking.

    def now(self):
        self.time += 1
        return self.time

    def floor(self, tokens):
        return tokens[: len(tokens) // self.page * self.page]

    def step(self, node, tokens):
        """Return the child that goes along with at least a page of `tokens`, and how far."""
        for child in node.children:
            length = shared(child.tokens, tokens) // self.page * self.page
            if length:
                return child, length
        return None, 0

    def peek(self, tokens):
        node, rest = self.root, self.floor(tokens)
        idle = 0
        while True:
            child, length = self.step(node, rest)
            if child is None:
                return len(self.floor(tokens)) - len(rest), idle
            idle += 0 if child.locks else length
            rest = rest[length:]
            if length < len(child.tokens):
                return len(self.floor(tokens)) - len(rest), idle
            node = child

    def split(self, node, length):
        upper = Node(node.parent, node.tokens[:length], self.now())
        upper.born, upper.hits = node.born, node.hits
        upper.priority, upper.locks = node.priority, node.locks
        node.parent.children.remove(node)
        node.parent.children.append(upper)
        upper.children = [node]
        node.parent, node.tokens = upper, node.tokens[length:]
        return upper

    def match(self, tokens):
        node, rest, now = self.root, self.floor(tokens), self.now()
        while True:
            child, length = self.step(node, rest)
            if child is None:
                return node
            child.used = now
            rest = rest[length:]
            if length < len(child.tokens):
                return self.split(child, length)
            node = child

    def insert(self, tokens, inserted, priority):
        node, rest, now, done = self.root, self.floor(tokens), self.now(), 0
        while True:
            child, length = self.step(node, rest)
            if child is None:
                break
            child.used = now
            if length < len(child.tokens):
                child = self.split(child, length)
            done += length
            rest = rest[length:]
            child.priority = max(child.priority, priority)
            child.hits += done > inserted
            node = child
        if rest:
            leaf = Node(node, rest, self.now())
            leaf.priority, leaf.hits = priority, 1 if done + len(rest) > inserted else 0
            node.children.append(leaf)
            node = leaf
        return node

    def lock(self, node, by):
        while node is not self.root:
            node.locks += by
            node = node.parent

    def evict(self, tokens):
        gone = 0
        while gone < tokens:
            leaves = [node for node in self.nodes() if not node.locks and not node.children]
            if not leaves:
                return
            victim = min(leaves, key=self.key)
            victim.parent.children.remove(victim)
            gone += len(victim.tokens)

    # What requests do.

    def start(self, prompt):
        """None: no room. A prompt larger than the cache is not for this oracle."""
        hit, idle = self.peek(prompt[:-1])
        extend = len(prompt) - hit
        need = -(-extend // self.page) * self.page
        if need > self.available + self.evictable - idle:
            return None
        node = self.match(prompt[:-1])
        request = Request(prompt, hit, node)
        self.lock(node, 1)
        self.evict(extend + (self.page if self.page > 1 else 0) - self.available)
        self.running.append(request)
        request.slots = need
        self.checkpoint(request)
        return request

    def checkpoint(self, request):
        """Put whole pages of what was computed into the tree, and hold them there."""
        tokens = self.floor(request.computed)
        node = self.insert(tokens, request.inserted, 0)
        prompt = self.floor(request.prompt)
        if 0 < len(prompt) < len(tokens):
            self.insert(prompt, len(prompt), 1)
        request.slots -= len(tokens) - max(request.inserted, request.hit)
        request.inserted = len(tokens)
        self.match(tokens)
        self.lock(request.node, -1)
        self.lock(node, 1)
        request.node = node

    def decode(self, request, token):
        """False: no room for its next token."""
        held = request.slots + request.inserted
        if not request.output:
            request.output.append(token)
            return True
        more = 0 if len(request.computed) + 1 <= held else self.page
        if more > self.available + self.evictable and more:
            return False
        self.evict((len(self.running) * self.page if self.page > 1 else more) - self.available)
        request.slots += more
        request.output.append(token)
        return True

    def finish(self, request):
        self.checkpoint(request)
        self.running.remove(request)
        self.lock(request.node, -1)
