"""One pod of a run: an endpoint for each of its engines, and its faults."""

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

    It `answers` scrapes unless it stalls, and `fails` while it answers requests with errors.
    Scrapes are late while more than `on_time` requests run. The last one was at `scraped_at`
    (seconds).
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
        self.answers = True
        self.fails = False
        self.scraped_at = -inf
        self.on_time = inf
        self._plan = plan
        self._clock = clock
        self._started_at = 1.0

    def scrape(self) -> Event:
        """Return what a scrape of it finds now."""
        self.scraped_at = self._clock.now
        limits, shown = self._plan.limits, self.engine.published
        if not self.engine.up:
            return ScrapeFailed(self.endpoint.id, ScrapeFailure.REFUSED)
        if not self.answers or shown.running > self.on_time:
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

    def apply_fault(self, fault: Fault) -> None:
        """Apply a fault to this pod."""
        match fault.kind:
            case FaultKind.DIE:
                self.engine.kill()
                if fault.seconds is not None:
                    self._clock.at(self._clock.now + fault.seconds, self._start)
            case FaultKind.STALL:
                self.engine.stall(fault.seconds or 0.0)
                self._set(fault, self, "answers", (False, True))
            case FaultKind.HANG:
                self.engine.stall(fault.seconds or 0.0)
            case FaultKind.FAIL:
                self._set(fault, self, "fails", (True, False))
            case FaultKind.LATE:
                most = -1 if fault.running is None else fault.running
                self._set(fault, self, "on_time", (most, inf))
            case FaultKind.SLOW:
                usual = self._plan.speed
                self._set(fault, self.engine, "speed", (usual * fault.factor, usual))

    def _set(self, fault: Fault, of: object, name: str, values: tuple[float, float]) -> None:
        """Set an attribute to the first value, and after the fault's seconds to the second."""
        setattr(of, name, values[0])
        if fault.seconds is not None:
            after = partial(setattr, of, name, values[1])
            self._clock.at(self._clock.now + fault.seconds, after)

    def _start(self) -> None:
        self._started_at = 1.0 + self._clock.now
        self.engine.start()
