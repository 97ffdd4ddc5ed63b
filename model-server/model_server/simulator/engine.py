"""Turns the scheduler's steps into time: one task, an absolute schedule. Knows no HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model_server.simulator.cost import step_seconds
from model_server.simulator.kv_events import Event, EventLog
from model_server.simulator.metrics import Load, Metrics, Timing
from model_server.simulator.scheduler import Finish, Request, Sampled, Scheduler, loras
from model_server.simulator.settings import Settings

# Timers, and the loop's own clock, are this coarse; shorter waits are merged and the loop is let
# run between them.
_TICK = 0.001
# A host that falls further behind than this is reported, not caught up with.
_MAX_LAG = 0.1


class Piece(NamedTuple):
    """Generated text for prompt number `prompt` of a call."""

    prompt: int
    text: str
    tokens: int
    finish: Finish | None


@dataclass(slots=True)
class _Place:
    """Where a request's output goes: its call, its index there, and what waits to be sent."""

    call: "Call"
    index: int
    arrival: float
    first_token: float | None = None
    text: str = ""
    tokens: int = 0


class Call:
    """The output of one HTTP call, which may hold several prompts."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = requests
        self._pieces: list[Piece] = []
        self._open = len(requests)
        self._waiter: asyncio.Future[None] | None = None

    def put(self, piece: Piece) -> None:
        """Hand over one piece and wake the reader."""
        self._pieces.append(piece)
        if piece.finish is not None:
            self._open -= 1
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def batches(self) -> AsyncIterator[list[Piece]]:
        """Yield what has come since the last batch, never empty, until every prompt is answered."""
        while self._open or self._pieces:
            if not self._pieces:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            batch, self._pieces = self._pieces, []
            yield batch


class Engine:
    """Runs the scheduler in simulated time. `run` must be running for calls to be answered.

    `publish`, if given, is called after each step with what the step changed in the cache.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        publish: Callable[[Sequence[Event]], None] | None = None,
    ) -> None:
        size, loras = settings.limits.block_size, tuple(settings.lora_modules)
        self._log = EventLog(size, loras) if publish else None
        self._emit = publish
        self.scheduler = Scheduler(settings.limits, self._log)
        self._speed = settings.speed
        self._tokens_per_chunk = settings.tokens_per_chunk
        self._metrics = metrics
        self._places: dict[Request, _Place] = {}
        self._wake = asyncio.Event()
        self._breath = 0.0

    @property
    def unfinished(self) -> int:
        """The number of requests that have arrived and not ended."""
        return len(self._places)

    def submit(self, requests: Sequence[Request]) -> Call:
        """Queue all prompts of one HTTP call."""
        call = Call(requests)
        now = time.monotonic()
        for index, request in enumerate(requests):
            self.scheduler.add(request)
            self._places[request] = _Place(call, index, now)
        self._wake.set()
        return call

    def abort(self, call: Call) -> None:
        """End what is unfinished of a call; harmless for a finished one."""
        for request in call.requests:
            if self._places.pop(request, None) is not None:
                self.scheduler.abort(request)
        self._publish()
        self._wake.set()

    async def run(self) -> None:
        """Step forever. A step ends when the schedule says so, not when the timer fires."""
        due = self._breath = time.monotonic()
        while True:
            step = self.scheduler.schedule()
            if not step:
                self._wake.clear()
                await self._wake.wait()
                due = self._breath = time.monotonic()
                continue
            due = await self._reach(due + step_seconds(step, self._speed))
            sampled = self.scheduler.complete(step)
            self._tell_events()
            self._deliver(sampled, time.monotonic())
            self._publish()

    def _tell_events(self) -> None:
        events = self._log.take() if self._log is not None else []
        if events and self._emit is not None:
            self._emit(events)

    async def _reach(self, due: float) -> float:
        """Wait until about `due`; returns the time from which the next step counts."""
        now = time.monotonic()
        if due - now >= _TICK:
            await asyncio.sleep(due - now)
            self._breath = now = time.monotonic()
        elif now - self._breath >= _TICK:
            await asyncio.sleep(0)
            self._breath = now = time.monotonic()
        if now - due > _MAX_LAG:
            self._metrics.lagged(now - due)
            return now
        return due

    def _deliver(self, sampled: list[Sampled], now: float) -> None:
        tokens = prompt_tokens = 0
        for output in sampled:
            place = self._places[output.request]
            tokens += bool(output.request.max_tokens)
            if output.first:
                prompt_tokens += output.request.prompt_len
                place.first_token = now - place.arrival
                self._metrics.first_token(place.first_token)
            self._hand_over(place, output)
            if output.finish is not None:
                self._close(place, output, now)
        if tokens or prompt_tokens:
            self._metrics.generated(tokens, prompt_tokens)

    def _hand_over(self, place: _Place, output: Sampled) -> None:
        place.text += output.text
        place.tokens += 1
        if place.tokens >= self._tokens_per_chunk or output.finish is not None:
            place.call.put(Piece(place.index, place.text, place.tokens, output.finish))
            place.text, place.tokens = "", 0

    def _close(self, place: _Place, output: Sampled, now: float) -> None:
        request = output.request
        del self._places[request]
        finish = output.finish or Finish.STOP
        self._metrics.finished(
            Timing(finish, request.generated, place.first_token, now - place.arrival)
        )

    def _publish(self) -> None:
        scheduler = self.scheduler
        load = Load(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            usage=scheduler.pool.usage,
            running_loras=",".join(sorted(loras(scheduler.running))),
            waiting_loras=",".join(sorted(loras(scheduler.waiting))),
        )
        self._metrics.publish(load, scheduler.counts)
