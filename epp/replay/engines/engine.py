"""A simulated engine in virtual time."""

from collections.abc import Iterable, Sequence
from functools import partial

from epp.model.prompts.hashing import BlockHash
from epp.replay.engines.contract import EngineLoad, Job, Limits, Listener, Progress
from epp.replay.engines.cost import StepCost
from epp.replay.engines.lockstep import Lockstep
from epp.replay.engines.scheduler import BatchScheduler
from epp.replay.simulation.clock import Clock

_MAX_STEPS = 256
"""The most steps that are computed at once."""


class Engine:
    """One engine, up and with an empty cache.

    The listener is called at a request's first and last token, and about every `progress_tokens`
    in between. `speed` divides the seconds of steps, from the next one on.
    """

    def __init__(
        self,
        limits: Limits,
        cost: StepCost,
        clock: Clock,
        listener: Listener,
        *,
        progress_tokens: int = 64,
    ) -> None:
        self.limits = limits
        self.cost = cost
        self.up = True
        self._clock = clock
        self._listener = listener
        self._progress_tokens = progress_tokens
        self._speed = 1.0
        self._begin_empty()
        self._lockstep = Lockstep(clock, (self,))

    def _begin_empty(self) -> None:
        self._scheduler = BatchScheduler(self.limits, self._progress_tokens)
        self._published = EngineLoad()
        self._arrivals: list[Job] = []
        self.stepping = False

    @property
    def speed(self) -> float:
        """How many times faster its steps are than the cost says."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        self._speed = speed
        self._lockstep.wake()

    @property
    def published(self) -> EngineLoad:
        """The load on the metrics page: as it was after the last completed step."""
        ended = self._steps_ended()
        return self._scheduler.load(ended - 1) if ended else self._published

    @property
    def load(self) -> EngineLoad:
        """The load of this moment."""
        ended = self._steps_ended()
        load = self._scheduler.load(ended)
        return load._replace(waiting=load.waiting + len(self._arrivals))

    def submit(self, job: Job) -> None:
        """Accept a request; if the engine is down, it is lost.

        A request that arrives during a step is queued after it. Raises `ValueError` for one that
        could never fit.
        """
        length = job.prompt_tokens + job.response_tokens
        if length > self.limits.context:
            raise ValueError(f"{length} tokens, but the engine takes {self.limits.context}")
        if not self.up:
            self._clock.at(self._clock.now, partial(self._listener, job, Progress.LOST))
            return
        self._arrivals.append(job)
        self._lockstep.wake()

    def cached_tokens(self, job: Job) -> int:
        """Return how much of a prompt is cached now, in tokens."""
        size = self.limits.block_size
        lookup = (job.prompt_tokens + job.generated - 1) // size
        return size * self._scheduler.pool.match(self.keys(job)[:lookup])

    def keys(self, job: Job) -> Sequence[BlockHash]:
        """Return the keys of a request's blocks, held here or not; none without prefix caching."""
        return self._scheduler.keys(job)

    @property
    def running(self) -> list[tuple[Job, int]]:
        """The running requests, and how many tokens of each are computed after the current step."""
        scheduler = self._scheduler
        counts = dict(scheduler.scheduled)
        return [(job, job.computed + counts.get(job, 0)) for job in scheduler.running]

    @property
    def waiting(self) -> list[Job]:
        """The waiting requests, in the order in which they will be admitted."""
        return [*self._scheduler.waiting, *self._arrivals]

    @property
    def step_left(self) -> float:
        """The seconds until the current step ends; 0 if there is none."""
        return self._lockstep.left if self.stepping else 0.0

    def kill(self) -> None:
        """Lose all requests, and accept none."""
        if ended := self._steps_ended():
            self._scheduler.repeat(ended)
        lost = [*self._scheduler.jobs(), *self._arrivals]
        self.up = False
        self._begin_empty()
        self._lockstep.drop()
        self._tell((job, Progress.LOST) for job in lost)

    def start(self) -> None:
        """Come up again, with an empty cache."""
        self.up = True

    def stall(self, seconds: float) -> None:
        """Do nothing for this many seconds."""
        self._lockstep.stall(seconds)

    def join(self, lockstep: Lockstep) -> None:
        """Step with others."""
        self._lockstep = lockstep

    def begin(self) -> tuple[float, float] | None:
        """Schedule a step; return its seconds and how much longer the next one takes."""
        scheduler = self._scheduler
        for job in self._arrivals:
            scheduler.add(job)
        self._arrivals.clear()
        work = scheduler.schedule(self._clock.now)
        self.stepping = work is not None
        if work is None:
            return None
        return self.cost.seconds(work) / self._speed, self.cost.growth(work) / self._speed

    def steps_alike(self) -> int:
        """Return how many steps in a row are alike, beginning with the scheduled one."""
        return self._scheduler.steps_alike(min(_MAX_STEPS, self._progress_tokens))

    def end(self, steps: int) -> None:
        """Apply this many steps, and send the notices."""
        if not self.stepping:
            return
        scheduler = self._scheduler
        self.stepping = False
        if steps > 1:
            scheduler.repeat(steps - 1)
        notices = scheduler.complete()
        self._published = scheduler.load()
        self._tell(notices)

    def _steps_ended(self) -> int:
        return self._lockstep.ended if self.stepping else 0

    def _tell(self, notices: Iterable[tuple[Job, Progress]]) -> None:
        for job, progress in notices:
            self._listener(job, progress)
