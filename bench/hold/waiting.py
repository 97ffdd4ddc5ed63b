"""What 10,000 requests that wait cost: CPU for each that goes, and memory for each that waits.

`python -m bench.hold.waiting`, a process of its own; prints one JSON object. The requests are 2 KB
chats of a hundred clients for ten endpoints. They come as ext_proc messages and wait in exchanges,
without streams. Virtual time stands still but where it is said to pass.
"""

import asyncio
import gc
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from bench.messages import request_messages
from bench.request_path import RequestPath, bodies
from epp.adapters.telemetry.logs import configure_logs
from epp.app.observers import Observer
from epp.model.request import InferenceRequest, RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.flow.flow_control import Outcome
from epp.policy.flow.held import HeldRequest
from epp.policy.flow.settings import BandLimits, FlowSettings
from epp.protocol.extproc.codec import decode
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.settings import ExchangeSettings
from epp.values import replaced

ENDPOINTS, WAITING, CLIENTS = 10, 10_000, 100
BODY = 2048
_RELEASES, _LOOKS, _TRACED = 2000, 200, 1000
_NO_HEADERS: dict[str, str] = {}
_GENERATED = 24


class Cost(msgspec.Struct, frozen=True):
    """CPU of a release and of a look for room that there is not, in microseconds; memory in bytes.

    `bytes_per_waiting` is what flow control keeps of a request, its quote included;
    `bytes_per_exchange` that with the exchange around it, without the body.
    """

    us_per_release: float
    us_per_look: float
    bytes_per_waiting: float
    bytes_per_exchange: float


class Rig(RequestPath):
    """A picker of ten endpoints with a clock that stands still, and exchanges that wait in it."""

    def __init__(self) -> None:
        band = BandLimits(max_requests=2 * WAITING)
        settings = ExchangeSettings(resolve=_of_client)
        super().__init__(ENDPOINTS, self._beside, settings, FlowSettings(band=band))
        self.begun: deque[RequestId] = deque()
        self.exchanges: list[Exchange] = []
        self.pending: list[object] = []

    def _beside(self, *_: object) -> tuple[Observer]:
        return (Observer(name="bench", committing=self._go),)

    def _go(self, request: InferenceRequest, *_: object) -> None:
        self.begun.append(request.id)

    def _id(self) -> RequestId:
        return RequestId(str(next(self._numbers)))

    def come(self, body: bytes) -> None:
        """Have a request come as Envoy tells of it."""
        exchange = Exchange(self.director, self.settings, self._id(), self.now)
        for message in request_messages(body):
            exchange.receive(decode(message), self.now)
        self.exchanges.append(exchange)

    def come_alone(self, body: bytes) -> None:
        """Have a request come without an exchange."""
        request = replaced(self.request(body), headers=_NO_HEADERS, size=len(body))
        self.pending.append(self.director.route(_of_client(request), self.now))

    def end_oldest(self) -> None:
        """Let the request that was sent first begin its response and end it."""
        oldest = self.begun.popleft()
        self.fleet.apply(FirstToken(oldest), self.now)
        self.fleet.apply(Finished(oldest, Usage(BODY // 4, _GENERATED, 0)), self.now)


def _of_client(request: InferenceRequest) -> InferenceRequest:
    client = f"client-{int(request.id) % CLIENTS}"
    return replaced(request, fairness_id=client)


async def measure() -> Cost:
    """Have requests wait, then let them go one after another."""
    rig = Rig()
    source = bodies(BODY)
    while not rig.flow.line.requests:
        rig.come(next(source))
    alone = _taken(rig, source, rig.come_alone)
    whole = _taken(rig, source, rig.come) - BODY
    while rig.flow.line.requests < WAITING:
        rig.come(next(source))
    looks = _looks(rig)
    return Cost(await _releases(rig), looks, alone, whole)


def _taken(rig: Rig, source: Iterator[bytes], come: Callable[[bytes], None]) -> float:
    """Return the bytes that a request takes which waits, of a number of them."""
    come(next(source))
    gc.collect()
    waiting = rig.flow.line.requests
    tracemalloc.start()
    for _ in range(_TRACED):
        come(next(source))
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / (rig.flow.line.requests - waiting)


def _looks(rig: Rig) -> float:
    """Return what it takes to find no room, in microseconds."""
    began = time.thread_time()
    released: list[tuple[HeldRequest, Outcome]] = []
    for _ in range(_LOOKS):
        rig.flow.release(rig.now, released)
    if released:
        raise ValueError("there was room")
    return (time.thread_time() - began) / _LOOKS * 1e6


async def _releases(rig: Rig) -> float:
    """Return what a release takes on the loop, in microseconds; its cause is left out."""
    spent, went = 0.0, rig.flow.line.requests
    while went - rig.flow.line.requests < _RELEASES:
        rig.end_oldest()
        began = time.thread_time()
        await asyncio.sleep(0)  # the release takes place in this turn
        spent += time.thread_time() - began
    return spent / (went - rig.flow.line.requests) * 1e6


if __name__ == "__main__":
    configure_logs("warning", "json")
    sys.stdout.write(msgspec.json.encode(asyncio.run(measure())).decode() + "\n")
