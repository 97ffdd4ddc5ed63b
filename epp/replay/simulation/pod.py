"""One pod of a run: an endpoint for each of its engines, and what happens to it."""

from functools import partial
from math import inf

from epp.model.endpoint import RANK_LABEL, ROLE_LABEL, Endpoint, Load
from epp.model.events import Event, LoadReported, ScrapeFailed, ScrapeFailure
from epp.replay.engines.contract import Listener
from epp.replay.engines.engine import Engine
from epp.replay.plan import Fault, FaultKind, PodPlan
from epp.replay.simulation.clock import Clock

_NAMESPACE, _PORT = "replay", 8000


class SimulatedPod:
    """One engine behind one endpoint, the pod `number` of the plan.

    `alive` but after it has died, `answers` scrapes but while it stalls; `fails` while it answers
    with errors. It was scraped last at `scraped_at` (seconds).
    """

    def __init__(
        self, number: int, rank: int | None, plan: PodPlan, clock: Clock, listener: Listener
    ) -> None:
        labels = {ROLE_LABEL: plan.role} if plan.role else {}
        if rank is not None:
            labels[RANK_LABEL] = str(rank)
        name = f"pod-{number}" if rank is None else f"pod-{number}-rank-{rank}"
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.number = number
        self.endpoint = Endpoint(_NAMESPACE, name, address, _PORT, labels)
        self.engine = Engine(plan.limits, plan.cost, clock, listener)
        self.engine.speed = plan.speed
        self.alive = True
        self.answers = True
        self.fails = False
        self.scraped_at = -inf
        self._on_time = inf  # as long as no more run
        self._plan = plan
        self._clock = clock
        self._started_at = 1.0

    def scrape(self) -> Event:
        """Return what a scrape of it gives at this moment."""
        self.scraped_at = self._clock.now
        limits, shown = self._plan.limits, self.engine.published
        if not self.alive:
            return ScrapeFailed(self.endpoint.id, ScrapeFailure.REFUSED)
        if not self.answers or shown.running > self._on_time:
            return ScrapeFailed(self.endpoint.id, ScrapeFailure.LATE)
        load = Load(
            waiting=shown.waiting,
            running=shown.running,
            kv_usage=shown.usage,
            block_size=limits.block_size,
            num_blocks=limits.num_gpu_blocks,
            caching=limits.enable_prefix_caching,
            started_at=self._started_at,
            at=self._clock.now,
            running_adapters=shown.running_adapters,
            waiting_adapters=shown.waiting_adapters,
            max_adapters=limits.max_loras,
        )
        return LoadReported(self.endpoint.id, load)

    def suffer(self, fault: Fault) -> None:
        """Have a fault happen to it."""
        _FAULTS[fault.kind](self, fault)

    def _die(self, fault: Fault) -> None:
        self.alive = False
        self.engine.kill()
        if fault.seconds is not None:
            self._clock.at(self._clock.now + fault.seconds, self._start)

    def _start(self) -> None:
        self.alive = True
        self._started_at = 1.0 + self._clock.now
        self.engine.start()

    def _stall(self, fault: Fault) -> None:
        seconds = fault.seconds or 0.0
        self.answers = False
        self.engine.stall(seconds)
        self._clock.at(self._clock.now + seconds, self._answer)

    def _answer(self) -> None:
        self.answers = True

    def _hang(self, fault: Fault) -> None:
        self.engine.stall(fault.seconds or 0.0)

    def _fail(self, fault: Fault) -> None:
        self.fails = True
        if fault.seconds is not None:
            self._clock.at(self._clock.now + fault.seconds, self._work)

    def _work(self) -> None:
        self.fails = False

    def _late(self, fault: Fault) -> None:
        self._on_time = -1.0 if fault.running is None else fault.running
        if fault.seconds is not None:
            self._clock.at(self._clock.now + fault.seconds, self._catch_up)

    def _catch_up(self) -> None:
        self._on_time = inf

    def _slow(self, fault: Fault) -> None:
        self._set_speed(self._plan.speed * fault.factor)
        if fault.seconds is not None:
            self._clock.at(
                self._clock.now + fault.seconds, partial(self._set_speed, self._plan.speed)
            )

    def _set_speed(self, speed: float) -> None:
        self.engine.speed = speed


_FAULTS = {
    FaultKind.DIE: SimulatedPod._die,  # noqa: SLF001 (the table of this class)
    FaultKind.STALL: SimulatedPod._stall,  # noqa: SLF001
    FaultKind.HANG: SimulatedPod._hang,  # noqa: SLF001
    FaultKind.FAIL: SimulatedPod._fail,  # noqa: SLF001
    FaultKind.LATE: SimulatedPod._late,  # noqa: SLF001
    FaultKind.SLOW: SimulatedPod._slow,  # noqa: SLF001
}
