"""Real routers in front of workers: what they pick for each request of the sequence."""

import asyncio
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import aiohttp
import msgspec

from bench.peers.traffic import Step
from bench.peers.workers import MODEL, Workers, started
from epp.errors import WarmpickError
from epp.gateway.processes import free_port, spawn

ROOT = Path(__file__).parents[2]
PODS = 4
_HOST = "127.0.0.1"
_START_SECONDS = 60.0
_SETTLE_SECONDS = 2.0
"""For a router to take in all workers, and KV events' subscriptions."""
_PICK_SECONDS = 30.0
_AFTER_SECONDS = 0.005
"""For a router to take note of what it has just passed on: first tokens, ends, KV events."""


class RouterFailed(WarmpickError):
    """A router did not pass a request on, or one in process did not come to its end."""


class Launch(msgspec.Struct, frozen=True):
    """How a router is started, without the flags that all have in common.

    `kv_events`: with the workers' KV events. `sessions`: requests name theirs in a header.
    """

    argv: tuple[str, ...]
    kv_events: bool = False
    sessions: bool = False


class Driver(msgspec.Struct, frozen=True):
    """A router that a module of `bench.peers.drivers` drives in process, with its arguments.

    `sources` is where its packages are, below .cache, unless they are installed.
    """

    module: str
    arguments: tuple[str, ...] = ()
    sources: str = ""


def driven(driver: Driver, python: Path, steps: Sequence[Step], log: Path) -> list[int]:
    """Return the worker that a router in process picks for each step. Raises `RouterFailed`."""
    sources = python.parents[2] / driver.sources
    if driver.sources and not sources.exists():
        raise RouterFailed(f"{sources} is not there; `make peers` says how to get it")
    written = log.with_suffix(".json")
    module = f"bench.peers.drivers.{driver.module}"
    argv = [str(python), "-m", module, *driver.arguments, str(written)]
    asked = [
        {
            "chat": step.chat,
            "tokens": step.tokens,
            "session": step.session,
            "begun": step.begun,
            "ended": step.ended,
        }
        for step in steps
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(sources)))}
    with log.open("wb") as said:
        ended = subprocess.run(
            argv,
            input=msgspec.json.encode(asked),
            stdout=said,
            stderr=said,
            env=environment,
            check=False,
        )
    if ended.returncode:
        raise RouterFailed(f"the router ended with status {ended.returncode}; see {log}")
    return msgspec.json.decode(written.read_bytes(), type=list[int])


async def picks(launch: Launch, python: Path, steps: Sequence[Step], log: Path) -> list[int]:
    """Return the worker that a router picks for each step. Raises `RouterFailed`, `ProcessDied`.

    A step is asked once the one before has arrived at its worker, and what ends before it has.
    """
    async with started(PODS) as workers:
        argv = [str(python), *launch.argv]
        argv += ["--worker-urls", *(each.url for each in workers.addresses)]
        if launch.kv_events:
            argv += ["--kv-event-model", MODEL]
            for each in workers.addresses:
                argv += ["--kv-event-source", f"{each.url}={each.events}"]
        port, metrics = free_port(), free_port()
        argv += ["--host", _HOST, "--port", str(port)]
        argv += ["--prometheus-host", _HOST, "--prometheus-port", str(metrics)]
        process = await spawn(log.stem, argv, log_dir=log.parent)
        try:
            url = f"http://{_HOST}:{port}"
            await process.wait_http(f"{url}/readiness", _START_SECONDS)
            await asyncio.sleep(_SETTLE_SECONDS)
            async with _Client(url, workers, sessions=launch.sessions) as client:
                return await client.play(steps)
        finally:
            await process.stop(0)


class _Client:
    def __init__(self, url: str, workers: Workers, *, sessions: bool) -> None:
        self._sessions = sessions
        self._url = url
        self._workers = workers
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._begun: dict[int, asyncio.Event] = {}

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._workers.end_all()
        await asyncio.gather(*self._calls.values(), return_exceptions=True)
        await self._session.close()

    async def play(self, steps: Sequence[Step]) -> list[int]:
        picked: list[int] = []
        for number, step in enumerate(steps):
            await self._pass(step)
            self._begun[number] = asyncio.Event()
            self._calls[number] = asyncio.create_task(self._call(number, step))
            arrival = asyncio.ensure_future(self._workers.arrival(number))
            waiting = {arrival, self._calls[number]}
            done, _ = await asyncio.wait(
                waiting, timeout=_PICK_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if arrival not in done:
                arrival.cancel()
                if self._calls[number] in done:
                    await self._calls[number]
                raise RouterFailed(f"request {number} did not arrive at any worker")
            picked.append(arrival.result())
        return picked

    async def _pass(self, step: Step) -> None:
        """Let first tokens come and requests end, and see them."""
        for number in step.begun:
            self._workers.begin(number)
            await self._begun[number].wait()
        for number in step.ended:
            self._workers.end(number)
            await self._calls.pop(number)
        await asyncio.sleep(_AFTER_SECONDS)

    async def _call(self, number: int, step: Step) -> None:
        body = {"model": MODEL, "messages": step.chat, "stream": True, "seed": number}
        headers = {"x-session-id": step.session} if self._sessions else {}
        url = f"{self._url}/v1/chat/completions"
        async with self._session.post(url, json=body, headers=headers) as response:
            if response.status != 200:
                said = (await response.text())[:200]
                raise RouterFailed(f"request {number} got status {response.status}: {said}")
            async for _ in response.content:
                self._begun[number].set()
