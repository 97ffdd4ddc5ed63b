"""vLLM's block pool written down a second time, from the rules: blocks by number, lists only.

Slow and obvious on purpose. One block is `size` tokens; block 0, the null block, is not here.
"""


class Held:
    """What one request holds: numbers of blocks in order, and how many of them it found."""

    def __init__(self, blocks, hits, tokens):
        self.blocks = blocks
        self.hits = hits
        self.tokens = tokens
        self.named = []
        self.over = False


class Oracle:
    def __init__(self, blocks, size=16):
        self.size = size
        self.total = blocks
        self.free = list(range(blocks))  # the next to be taken first
        self.content = dict.fromkeys(range(blocks))
        self.refs = dict.fromkeys(range(blocks), 0)
        self.order = []  # blocks with content, in the order of registration
        self.found = set()  # blocks in use that another request found
        self.generated = 0

    def find(self, block_hash):
        return next((block for block in self.order if self.content[block] == block_hash), None)

    def hits(self, hashes):
        found = []
        for block_hash in hashes:
            block = self.find(block_hash)
            if block is None:
                break
            found.append(block)
        return found

    def hashes(self):
        return {self.content[block] for block in self.order if isinstance(self.content[block], int)}

    def allocate(self, hashes, tokens, lookup):
        found = self.hits(hashes[:lookup])
        blocks = -(-tokens // self.size)
        need = blocks - len(found)
        if blocks > self.total:
            return Held([], 0, 0)
        if need > len(self.free) - sum(1 for block in found if not self.refs[block]):
            return None
        for block in found:
            if not self.refs[block]:
                self.free.remove(block)
            else:
                self.found.add(block)
            self.refs[block] += 1
        fresh = [self.take() for _ in range(need)]
        for block, block_hash in zip(fresh, hashes[len(found) :], strict=False):
            self.fill(block, block_hash)
        return Held(found + fresh, len(found), tokens)

    def take(self):
        block = self.free.pop(0)
        if block in self.order:
            self.order.remove(block)
        self.content[block] = None
        self.refs[block] = 1
        return block

    def fill(self, block, content):
        self.content[block] = content
        self.order.append(block)

    def grow(self, held, tokens):
        """Compute up to `tokens`; what fills gets a name that nobody asks for."""
        if not held.blocks:
            return True
        need = max(0, -(-tokens // self.size) - len(held.blocks))
        if need > len(self.free):
            return False
        held.blocks += [self.take() for _ in range(need)]
        held.tokens = max(held.tokens, tokens)
        for block in held.blocks[: held.tokens // self.size]:
            if self.content[block] is None:
                self.generated += 1
                self.fill(block, f"generated {self.generated}")
        return True

    def unhashed(self, held):
        """Blocks of a request that hold what it generated, still, and have no name."""
        return [
            block
            for block, content in held.generated.items()
            if self.content[block] == content and block in self.order
        ]

    def assign_hashes(self, held, hashes):
        """Name what a request generated, from the first unhashed block on."""
        blocks = [block for block in held.blocks if isinstance(self.content[block], str)]
        if held.over:
            blocks = self.unhashed(held)
        named = list(zip(blocks, hashes, strict=False))
        for block, block_hash in named:
            self.order.remove(block)
            self.fill(block, block_hash)
        return len(named)

    def release(self, held):
        held.over = True
        held.generated = {
            block: self.content[block]
            for block in held.blocks
            if isinstance(self.content[block], str)
        }
        for block in reversed(held.blocks):
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            self.found.discard(block)
            if self.content[block] is None:
                self.free.insert(0, block)
            else:
                self.free.append(block)
        held.blocks = []

    def revoke(self, held):
        fresh = [block for block in held.blocks[held.hits :] if block not in self.found]
        self.release(held)
        for block in fresh:
            self.blank(block)

    def blank(self, block):
        """Empty a block if it is free."""
        if not self.refs[block] and self.content[block] is not None:
            self.free.remove(block)
            self.free.insert(0, block)
            self.order.remove(block)
            self.content[block] = None

    def store(self, hashes):
        """Believe that blocks are held: the last to be evicted."""
        fresh = [block_hash for block_hash in hashes if self.find(block_hash) is None]
        taken = [self.take() for _ in fresh[: len(self.free)]]
        for block, block_hash in zip(taken, fresh, strict=False):
            self.refs[block] = 0
            self.fill(block, block_hash)
        self.free += reversed(taken)

    def discard(self, hashes):
        for block in list(self.order):
            if self.content[block] in hashes:
                self.blank(block)
