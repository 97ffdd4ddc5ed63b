"""What a request costs the event loop of a replica: told to the others, and taken in from one.

CPU of the thread, by a request that is admitted, begins and ends: three facts. Told: what the
listener notes, writing, and sending over one encrypted connection. Taken in: reading, and the
fleet. Encryption itself is done by a thread of libzmq's.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import zmq

from epp.adapters.replicas.settings import ReplicaSettings, derive_keys
from epp.adapters.replicas.sockets import connection, tcp_endpoint
from epp.model.endpoint import Endpoint, EndpointId
from epp.model.events import EndpointUpserted, Event
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.quote import Quote
from epp.model.request import Api, InferenceRequest, Prompt, RequestId, Usage
from epp.model.request_events import Admitted, Finished, FirstToken
from epp.protocol.replicas.fact_reader import FactReader
from epp.protocol.replicas.fact_writer import FactWriter

_MARK = b"in bench"
_SECRET = b"a secret of the benchmark"
_PODS = 10
_BATCH = 4
"""Requests of a message: a millisecond at 4,000 a second."""
SIZES = {"2k": (2 << 10, 4000), "220k": (220 << 10, 400)}
"""Bytes of a prompt, and how many requests are measured."""


class Side:
    """One replica without its sockets."""

    def __init__(self, number: int) -> None:
        self.now = 1000.0
        self.fleet = Fleet(BlockHasher(_SECRET))
        for pod in range(_PODS):
            endpoint = Endpoint("default", f"vllm-7d9f8c6b5-{pod:05}", f"10.0.0.{pod + 1}", 8000)
            self.fleet.apply(EndpointUpserted(endpoint), self.now)
        self.writer = FactWriter(_MARK, number, self.fleet.pods.endpoint, lambda _: None)
        self.reader = FactReader(self.writer)

    def quote(self, number: int, text: bytes) -> Quote:
        request = InferenceRequest(
            id=RequestId(f"00000000-0000-4000-8000-{number:012}"),
            api=Api.CHAT,
            model="m",
            target_model="meta-llama/Llama-3.1-8B-Instruct",
            prompts=(Prompt(text),),
            stream=True,
            max_tokens=200,
        )
        return self.fleet.quote(request, self.now)

    def tell(self, events: Sequence[Event], send: Callable[[bytes], object]) -> list[bytes]:
        """Send what it saw in a millisecond; return the messages."""
        for event in events:
            self.writer.note(event, self.now, False)  # noqa: FBT003 (a `Listener`)
        messages = list(self.writer.messages())
        for message in messages:
            send(message)
        self.now += 0.001
        return messages

    def take_in(self, messages: Sequence[bytes]) -> None:
        """Apply what another one sent."""
        self.now += 0.001
        for message in messages:
            for event in self.reader.read(message, self.now).events:
                self.fleet.apply(event, self.now)


def measure(size: str, send: Callable[[bytes], object]) -> tuple[float, float, float]:
    """Return microseconds a request to tell and to take in, and bytes a request.

    `send` sends a message to another replica.
    """
    count = SIZES[size][1]
    one, other = Side(1), Side(2)
    told = heard = 0.0
    carried = 0
    for events in list(batches(one, *SIZES[size])):
        began = time.thread_time()
        messages = one.tell(events, send)
        told += time.thread_time() - began
        carried += sum(map(len, messages))
        began = time.thread_time()
        other.take_in(messages)
        heard += time.thread_time() - began
    return told / count * 1e6, heard / count * 1e6, carried / count


def batches(side: Side, length: int, count: int) -> Iterator[list[Event]]:
    """Yield what `count` requests of this length bring about, by messages."""
    chance = random.Random(1)
    for start in range(0, count, _BATCH):
        numbers = range(start, start + _BATCH)
        quotes = [
            side.quote(each, chance.randbytes(length // 2).hex().encode()) for each in numbers
        ]
        yield list(_course(quotes, chance))


@contextmanager
def connected() -> Iterator[Callable[[bytes], object]]:
    """Give what sends a message over an encrypted connection to a socket that reads it."""
    keys = derive_keys(_SECRET)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as there:
        there.setsockopt(zmq.CURVE_SERVER, 1)
        there.setsockopt(zmq.CURVE_SECRETKEY, keys.secret)
        there.setsockopt(zmq.LINGER, 0)
        port = there.bind_to_random_port("tcp://127.0.0.1")
        with connection(
            context, keys, ReplicaSettings(peers=[]), tcp_endpoint("127.0.0.1", port)
        ) as here:
            here.setsockopt(zmq.LINGER, 0)
            here.send(b"hello", 0)  # waits until it is connected
            yield lambda message: here.send_multipart([message], zmq.NOBLOCK)


def _course(quotes: list[Quote], chance: random.Random) -> Iterator[Event]:
    for quote in quotes:
        name = f"default/vllm-7d9f8c6b5-{chance.randrange(_PODS):05}"
        yield Admitted(quote, EndpointId(name))
    for quote in quotes:
        yield FirstToken(quote.request_id)
        yield Finished(quote.request_id, Usage(quote.tokens, 200, 0))
