"""Many runs on all cores, or on a Ray cluster, with the same results wherever they take place."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import lru_cache, partial
from hashlib import blake2b
from importlib import import_module
from threading import Thread
from typing import Any

import msgspec

from epp.app.process import freeze_long_lived_objects, uncollected
from epp.errors import ConfigError
from epp.replay.plan import RunPlan, Traffic
from epp.replay.results.digest import Digest, Slo, digest
from epp.replay.simulation.run import Simulation
from epp.replay.traffic.calls import Trace
from epp.replay.traffic.copies import minutes, superposed
from epp.replay.traffic.reading import read
from epp.replay.traffic.workloads.arrivals import Arrivals, arriving

_RAY_SECONDS = 5.0
_TOLD = 1000
"""How often a run reports its progress while its traffic arrives, unless that is short."""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run: the traffic to read for it, and its plan.

    Requests before `warm_up` seconds are left out of figures. The other fields are `Played`'s.
    """

    traffic: Traffic
    plan: RunPlan
    cell: str
    workload: str
    load: float
    warm_up: float = 0.0
    slo: Slo = Slo()

    @property
    def label(self) -> str:
        """Its name for people."""
        return f"{self.cell}, {self.plan.policy.name}, seed {self.plan.seed}"


Ended = MutableSequence[int]
"""How many requests of each task have ended, as far as is known while it runs."""


def play(
    task: Task,
    simulation: Callable[[Trace, RunPlan], Simulation] = Simulation,
    tell: Callable[[int], None] | None = None,
) -> Digest:
    """Play one run, and call `tell` now and then with how many requests have ended.

    Raises `ConfigError` if its traffic cannot be read.
    """
    trace = read_traffic(task.traffic)
    freeze_long_lived_objects()  # the traffic, and not what is left of the run before
    run = simulation(trace, task.plan)
    if tell is not None:
        _tell_from_now_on(run, max(1.0, trace.calls[-1].at / _TOLD), tell)
    played = run.run()
    return digest(
        msgspec.structs.replace(
            played,
            cell=task.cell,
            workload=task.workload,
            load=task.load,
            began=task.warm_up,
            traffic=fingerprint(task.traffic),
            seconds=max(0.0, played.seconds - task.warm_up),
        ),
        task.slo,
    )


def _tell_from_now_on(run: Simulation, pause: float, tell: Callable[[int], None]) -> None:
    """Report how many requests have ended, again after each `pause` of virtual seconds."""
    tell(len(run.outcomes))
    again = partial(_tell_from_now_on, run, pause, tell)
    run.clock.routinely_at(run.now + pause, again)


@lru_cache(maxsize=2)
def read_traffic(traffic: Traffic) -> Trace:
    """Read traffic, and change it as the run asks. Raises `ConfigError`."""
    with uncollected():
        trace = read(traffic.source, seed=traffic.seed, strict=traffic.strict)
        if traffic.minutes is not None:
            trace = minutes(trace, *traffic.minutes)
        if traffic.requests is not None:
            trace = msgspec.structs.replace(trace, calls=trace.calls[: traffic.requests])
        trace = superposed(trace, traffic.copies, traffic.seed)
        return arriving(trace, Arrivals(rate=traffic.rate, users=traffic.users), traffic.seed)


@lru_cache(maxsize=2)
def fingerprint(traffic: Traffic) -> str:
    """Return a digest of the traffic, the same for equal traffic. Raises `ConfigError`."""
    calls = msgspec.msgpack.encode(read_traffic(traffic).calls)
    return blake2b(calls, digest_size=8).hexdigest()


def counted(tasks: Sequence[Task]) -> Ended:
    """Return counts that this process shares with those of `on_cores`."""
    counts: Ended = multiprocessing.get_context("spawn").RawArray("Q", len(tasks))
    return counts


def on_cores(
    tasks: Sequence[Task], jobs: int | None = None, ended: Ended | None = None
) -> Iterator[tuple[int, Digest]]:
    """Yield each task's number and the result of its run, as they end.

    `jobs` processes work at once, by default one per core; with one, runs take place here. They
    write their progress into `ended`, which `counted` made. Raises `ConfigError` if one of them is
    killed.
    """
    workers = min(len(tasks), jobs or os.cpu_count() or 1)
    ended = counted(tasks) if ended is None else ended
    if workers <= 1:
        for number, task in enumerate(tasks):
            yield number, play(task, tell=partial(ended.__setitem__, number))
        return
    read_traffic.cache_clear()  # each process reads its own
    with processes(workers, ended) as pool:
        futures: dict[Future[Digest], int] = {
            pool.submit(_play_counted, number, task): number for number, task in enumerate(tasks)
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise ConfigError(
                f"one of {workers} processes was killed during a run, perhaps for lack of memory:"
                " use fewer",
                "--jobs",
            ) from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def processes(count: int | None, ended: Ended | None = None) -> ProcessPoolExecutor:
    """Return this many new processes (None: one for each core).

    Ctrl-C ends them at once, and so does the end of this process, whatever its cause: a run takes
    minutes, and others may follow it.
    """
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, spawn, _begin, (ended,))


_ended: list[Ended] = []
"""What this process counts in, if another one began it."""


def _begin(ended: Ended | None) -> None:
    _ended[:] = () if ended is None else (ended,)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Thread(target=_end_with_parent, daemon=True).start()


def _play_counted(number: int, task: Task) -> Digest:
    return play(task, tell=partial(_ended[0].__setitem__, number))


def _end_with_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def on_ray(tasks: Sequence[Task], address: str) -> Iterator[tuple[int, Digest]]:
    """Do the same on an existing Ray cluster at `address`. Raises `ConfigError` without one.

    An address is `auto`, `HOST:PORT` or `ray://HOST:PORT`.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise ConfigError("Ray is not installed: pip install 'warmpick[ray]'", "--ray") from error
    try:
        _look_for(address)
        ray.init(address=address, log_to_driver=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"no Ray cluster answers at {address}: {error}", "--ray") from error
    try:
        remote = ray.remote(play)
        waiting = {remote.remote(task): number for number, task in enumerate(tasks)}
        while waiting:
            (done,), _ = ray.wait(list(waiting), num_returns=1)
            yield waiting.pop(done), ray.get(done)
    finally:
        ray.shutdown()


def _look_for(address: str) -> None:
    """Connect to an address, and hang up: Ray would wait forever if nothing listens there.

    Raises `OSError`.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdecimal():
        socket.create_connection((host, int(port)), _RAY_SECONDS).close()
