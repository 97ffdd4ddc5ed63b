"""What 10,000 requests that wait cost: CPU for each that goes, and memory for each that waits.

`python -m bench.hold.waiting`, a process of its own; prints one JSON object. The requests are 2 KB
chats of a hundred clients for ten endpoints. They come as ext_proc messages and wait in exchanges,
without streams. Virtual time stands still but where it is said to pass.
"""

import asyncio
import gc
import random
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count

import msgspec

from bench.request_path import Messages, bodies
from epp.adapters.telemetry.logs import configure_logs
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.app.cache_sources import build_fleet
from epp.app.director import PickerDirector
from epp.config.file import DEFAULT_POLICY, POLICIES, load
from epp.model.endpoint import Endpoint, Load
from epp.model.events import EndpointUpserted, LoadReported
from epp.model.listeners import reraise
from epp.model.request import Api, InferenceRequest, RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.flow.flow_control import FlowControl, Outcome
from epp.policy.flow.held import Held
from epp.policy.flow.settings import BandLimits, FlowSettings
from epp.policy.scheduler import Scheduler
from epp.protocol.bodies.request_json import parse_request
from epp.protocol.extproc.codec import decode
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.settings import ExchangeSettings
from epp.values import replaced

ENDPOINTS, WAITING, CLIENTS = 10, 10_000, 100
BODY = 2048
_BLOCK, _BLOCKS = 16, 35_000
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


class Rig:
    """A picker of ten endpoints with a clock that stands still, and exchanges that wait in it."""

    def __init__(self) -> None:
        settings = load(POLICIES[DEFAULT_POLICY])
        self.now = 1000.0
        self.fleet = fleet = build_fleet(settings, b"bench", 5)
        self.begun: deque[RequestId] = deque()
        for number in range(ENDPOINTS):
            endpoint = Endpoint("bench", f"pod-{number}", f"10.1.0.{number}", 80)
            fleet.apply(EndpointUpserted(endpoint), self.now)
            said = Load(block_size=_BLOCK, num_blocks=_BLOCKS, engine="vllm", at=self.now)
            fleet.apply(LoadReported(endpoint.id, said), self.now)
        scheduler = Scheduler(
            fleet, settings.scheduling, random.Random(1).randrange, committing=[("bench", self._go)]
        )
        band = BandLimits(max_requests=2 * WAITING)
        self.flow = FlowControl(scheduler, fleet, FlowSettings(band=band))
        sources = MetricSources(
            "bench", fleet.loads, fleet.cache_stats, lambda: fleet.indexed_blocks
        )
        self._director = PickerDirector(
            scheduler,
            fleet.apply,
            Telemetry(sources),
            lambda: self.now,
            None,
            poll_now=lambda _: None,
            on_fault=reraise,
            flow=self.flow,
        )
        self._settings = ExchangeSettings(resolve=_of_client)
        self._numbers = count()
        self.exchanges: list[Exchange] = []
        self.pending: list[object] = []

    def _go(self, request: InferenceRequest, *_: object) -> None:
        self.begun.append(request.id)

    def come(self, body: bytes) -> None:
        """Have a request come as Envoy tells of it."""
        number = RequestId(str(next(self._numbers)))
        exchange = Exchange(self._director, self._settings, number, self.now)
        for message in Messages.about(body).request:
            exchange.receive(decode(message), self.now)
        self.exchanges.append(exchange)

    def come_alone(self, body: bytes) -> None:
        """Have a request come without an exchange."""
        parsed = parse_request(Api.CHAT, body)
        request = InferenceRequest(
            id=RequestId(str(next(self._numbers))),
            api=Api.CHAT,
            model=parsed.model,
            target_model=parsed.model,
            prompts=parsed.prompts,
            headers=_NO_HEADERS,
            size=len(body),
        )
        self.pending.append(self._director.route(_of_client(request), self.now))

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
    while not len(rig.flow.line):
        rig.come(next(source))
    alone = _taken(rig, source, rig.come_alone)
    whole = _taken(rig, source, rig.come) - BODY
    while len(rig.flow.line) < WAITING:
        rig.come(next(source))
    looks = _looks(rig)
    return Cost(await _releases(rig), looks, alone, whole)


def _taken(rig: Rig, source: Iterator[bytes], come: Callable[[bytes], None]) -> float:
    """Return the bytes that a request takes which waits, of a number of them."""
    come(next(source))
    gc.collect()
    waiting = len(rig.flow.line)
    tracemalloc.start()
    for _ in range(_TRACED):
        come(next(source))
    gc.collect()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return taken / (len(rig.flow.line) - waiting)


def _looks(rig: Rig) -> float:
    """Return what it takes to find no room, in microseconds."""
    began = time.thread_time()
    released: list[tuple[Held, Outcome]] = []
    for _ in range(_LOOKS):
        rig.flow.release(rig.now, released)
    if released:
        raise ValueError("there was room")
    return (time.thread_time() - began) / _LOOKS * 1e6


async def _releases(rig: Rig) -> float:
    """Return what a release takes on the loop, in microseconds; its cause is left out."""
    spent, went = 0.0, len(rig.flow.line)
    while went - len(rig.flow.line) < _RELEASES:
        rig.end_oldest()
        began = time.thread_time()
        await asyncio.sleep(0)  # the release takes place in this turn
        spent += time.thread_time() - began
    return spent / (went - len(rig.flow.line)) * 1e6


if __name__ == "__main__":
    configure_logs("warning", "json")
    sys.stdout.write(msgspec.json.encode(asyncio.run(measure())).decode() + "\n")
