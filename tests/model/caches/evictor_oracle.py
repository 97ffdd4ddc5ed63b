"""vLLM v0's block manager written down a second time: blocks as objects, every step on a clock.

From the published rules of `block_manager_v1.py` and `evictor.py`; slow and obvious on purpose.
"""


class Block:
    def __init__(self, name, tokens):
        self.name, self.tokens = name, tokens
        self.references = 0
        self.accessed = -1


class Table:
    """The blocks of one request, and how many of them it found computed."""

    def __init__(self):
        self.blocks = []
        self.hits = 0


class EvictorOracle:
    def __init__(self, blocks):
        self.total = blocks
        self.used = {}
        self.evictor = {}
        self.running = []
        self.unnamed = 0
        self.time = 0

    @property
    def free(self):
        return self.total - len(self.used)

    def names(self):
        return {name for name in (*self.used, *self.evictor) if not isinstance(name, str)}

    def step(self):
        """Run the model once: all blocks of all that run are accessed."""
        self.time += 1
        for table in self.running:
            for block in table.blocks:
                block.accessed = self.time

    def admit(self, names, partial, lookup):
        """None: later. A table that is not running: never."""
        self.step()
        need, watermark = len(names) + partial, int(0.01 * self.total)
        if self.total - need < watermark:
            return Table()
        if self.free - need < watermark:
            return None
        table = Table()
        held = [name in self.used or name in self.evictor for name in names[:lookup]]
        table.hits = [*held, False].index(False)
        for at, name in enumerate(names):
            table.blocks.append(self.allocate(name, at + 1))
        if partial:
            table.blocks.append(self.allocate(self.nobody(), len(names) + 1))
        self.running.append(table)
        self.step()
        return table

    def nobody(self):
        self.unnamed += 1
        return f"partial {self.unnamed}"

    def allocate(self, name, tokens):
        if name in self.evictor:
            self.used[name] = self.evictor.pop(name)
        elif name not in self.used:
            if len(self.used) + len(self.evictor) == self.total:
                self.evict()
            self.used[name] = Block(name, tokens)
        self.used[name].references += 1
        return self.used[name]

    def evict(self):
        victim = min(self.evictor.values(), key=lambda block: (block.accessed, -block.tokens))
        del self.evictor[victim.name]

    def append(self, table):
        """Begin one more block; False: there is none."""
        self.step()
        if not self.free:
            return False
        table.blocks.append(self.allocate(self.nobody(), len(table.blocks) + 1))
        return True

    def promote(self, table, name):
        """The last block is full, and now it has a name."""
        last = table.blocks[-1]
        if name in self.used or name in self.evictor:
            self.give_back(last)
            table.blocks[-1] = self.allocate(name, last.tokens)
        else:
            del self.used[last.name]
            last.name = name
            self.used[name] = last

    def give_back(self, block):
        block.references -= 1
        if not block.references:
            del self.used[block.name]
            if not isinstance(block.name, str):
                self.evictor[block.name] = block

    def finish(self, table):
        self.step()
        self.running.remove(table)
        for block in table.blocks:
            self.give_back(block)
