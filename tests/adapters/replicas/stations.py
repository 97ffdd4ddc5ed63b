"""Replicas that reach each other over the streams of a real Redis."""

import contextlib
from collections import Counter

from epp.adapters.replicas import streams
from epp.adapters.replicas.redis_server import redis_server
from epp.adapters.replicas.streams import RedisStreams, prefix_of
from epp.protocol.replicas.messages import THIS_IS_YOU, Dropped
from tests import tasks
from tests.tasks import until

SECRET = b"the secret of all of them"
OTHER = b"the secret of somebody else"
POOL = "default/pool"
ALL = prefix_of(POOL) + b"all"


class Station:
    """A replica that keeps what it hears, and answers `?...` with `!...`."""

    def __init__(self, address, secret=SECRET, pool=POOL, password=None):
        self.heard = []
        self.replies = []
        self.dropped = Counter[Dropped]()
        self.streams = RedisStreams(
            redis_server(address, password), secret, pool, self.receive, self.drop
        )

    def receive(self, message, reply):
        self.heard.append(message)
        self.replies.append(reply)
        if message.startswith(b"?"):
            reply(b"!" + message[1:])
        else:
            reply(THIS_IS_YOU)

    def drop(self, reason):
        self.dropped[reason] += 1

    async def tell(self, message):
        """Send as soon as the server takes it."""
        await until(lambda: self.streams.send(message))

    @property
    def works(self):
        return all(self.streams._works.values())


@contextlib.asynccontextmanager
async def running(*args, **more):
    made = Station(*args, **more)
    try:
        async with tasks.running(made.streams.run()):
            yield made
    finally:
        await made.streams.stop()


@contextlib.asynccontextmanager
async def station(*args, **more):
    async with running(*args, **more) as made:
        await until(lambda: made.works)
        yield made


async def meet(*stations):
    """Let each know of the others that they run."""
    for each in stations:
        await each.tell(streams._RUNS)
    names = {each.streams._seal.sender for each in stations}
    for each in (made.streams for made in stations):
        others = names - {each._seal.sender}
        await until(lambda each=each, others=others: others <= each._running.keys())


def write(server, seal, to, message):
    server.do("XADD", to, "*", "m", seal.seal(to, message))
