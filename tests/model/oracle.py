"""vLLM's block pool written down a second time, from the rules: blocks by number, lists only.

Slow and obvious on purpose. One block is `bs` tokens; block 0, the null block, is not here.
"""


class Held:
    """What one request holds: numbers of blocks, and how many of them it found."""

    def __init__(self, blocks, hits):
        self.blocks = blocks
        self.hits = hits


class Oracle:
    def __init__(self, blocks):
        self.total = blocks
        self.free = list(range(blocks))  # the next to be taken first
        self.content = dict.fromkeys(range(blocks))
        self.refs = dict.fromkeys(range(blocks), 0)
        self.order = []  # blocks with content, in the order of registration
        self.named = 0

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

    def admit(self, hashes, partial, lookup):
        found = self.hits(hashes[:lookup])
        need = len(hashes) - len(found) + partial
        if len(hashes) + partial > self.total:
            return Held([], 0)
        if need > len(self.free) - sum(1 for block in found if not self.refs[block]):
            return None
        for block in found:
            if not self.refs[block]:
                self.free.remove(block)
            self.refs[block] += 1
        fresh = [self.take() for _ in range(need)]
        for block, block_hash in zip(fresh, hashes[len(found) :], strict=False):
            self.name(block, block_hash)
        return Held(found + fresh, len(found))

    def take(self):
        block = self.free.pop(0)
        if block in self.order:
            self.order.remove(block)
        self.content[block] = None
        self.refs[block] = 1
        return block

    def name(self, block, content):
        self.content[block] = content
        self.order.append(block)

    def grow(self, held, blocks):
        """Fill blocks with generated tokens, under names that nobody will ever ask for."""
        partial = [block for block in held.blocks if self.content[block] is None]
        kept = [block for block in held.blocks if self.content[block] is not None]
        grown = [self.take() for _ in range(min(blocks, len(self.free)))]
        for block in grown:
            self.named += 1
            self.name(block, f"generated {self.named}")
        held.blocks = kept + grown + partial

    def release(self, held):
        for block in reversed(held.blocks):
            self.refs[block] -= 1
            if self.refs[block]:
                continue
            if self.content[block] is None:
                self.free.insert(0, block)
            else:
                self.free.append(block)

    def revoke(self, held):
        self.release(held)
        for block in held.blocks[held.hits :]:
            if not self.refs[block] and self.content[block] is not None:
                self.free.remove(block)
                self.free.insert(0, block)
                self.order.remove(block)
                self.content[block] = None
