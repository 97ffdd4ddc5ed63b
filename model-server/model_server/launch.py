"""Starts `vllm serve` with the settings that Warmpick needs, and shuts it down in order.

`python -m model_server.launch MODEL [flags] [-- arguments of vllm serve]`, or `--config FILE`. Once
the model is served, it prints one JSON line: {"event": "listening", "host": ..., "port": ...}.
After SIGTERM it reports not ready and serves on for --leave-seconds, then gives running requests
--drain-seconds to finish, then ends all processes of the engine. Ctrl-C or a second signal skips
--leave-seconds.

Exit status: 0 after SIGTERM, 130 after Ctrl-C, 1 if the engine ended by itself or did not start in
time, 2 for a flag, file or variable that is not valid, 3 if vLLM is not installed.
"""

import asyncio
import os
import signal
import socket
import sys
from collections import deque
from pathlib import Path

import msgspec

from model_server import command
from model_server.adapters import InvalidAdapters
from model_server.client import Client, opened
from model_server.command import Launch
from model_server.engine import (
    HOW_TO_GET_VLLM,
    VLLM_COMMAND,
    Died,
    Engine,
    installed_device,
    is_installed,
    reserve_port,
    url_of,
)
from model_server.flags import environment, serve_arguments
from model_server.lora import AdapterSync, read_adapters
from model_server.probes import Probes, answering
from model_server.settings import Settings
from model_server.standing import Phase, Standing

LAST_LINES = 25
KILL_SECONDS = 10.0
"""How long vLLM has to end its processes after the drain, before they are killed."""


class Listening(
    msgspec.Struct, frozen=True, tag_field="event", tag="listening", omit_defaults=True
):
    """The line on stdout."""

    host: str
    port: int
    probe_port: int | None = None


def parse(arguments: list[str]) -> Launch:
    """Read the command line into values; exit with status 2 if it is invalid."""
    variables = {"POD_IP": socket.gethostname()} | os.environ
    return command.launch(arguments, __doc__ or "", variables, installed_device)


def _say(text: str) -> None:
    print(f"model_server.launch: {text}", file=sys.stderr, flush=True)


class Stop:
    """What the signals ask for: the first one to end, the second to end without waiting."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.asked: asyncio.Future[int] = loop.create_future()
        """The exit status that the first signal means."""
        self.hurry = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, self._ask, 0)
        loop.add_signal_handler(signal.SIGINT, self._ask, 130)

    def _ask(self, status: int) -> None:
        if self.asked.done() or status:
            self.hurry.set()
        if not self.asked.done():
            self.asked.set_result(status)


def end_seconds(settings: Settings, phase: Phase) -> float:
    """Return the seconds that vLLM has to end: while it loads there is no request to wait for."""
    return KILL_SECONDS + (0 if phase is Phase.LOADING else settings.drain_seconds)


class Server:
    """One engine from its first moment to its last."""

    def __init__(self, launch: Launch, engine: Engine, client: Client, standing: Standing) -> None:
        self._settings = launch.settings
        self._life = launch.life
        self._engine = engine
        self._client = client
        self._standing = standing

    async def run(self, stop: Stop, listening: Listening) -> int:
        """Serve until asked to end or until the engine ends by itself; return the exit status."""
        serving = asyncio.create_task(self._serve(listening), name="serve")
        try:
            await asyncio.wait({serving, stop.asked}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.asked.done():
                return serving.result()
            if self._standing.phase is Phase.SERVING:
                self._standing.phase = Phase.LEAVING
                await self._leave(stop)
            return stop.asked.result()
        finally:
            seconds = end_seconds(self._settings, self._standing.phase)
            self._standing.phase = Phase.DRAINING
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            if not await self._engine.stop(seconds):
                _say("vLLM did not end in time and was killed")
            self._standing.phase = Phase.ENDED

    async def _leave(self, stop: Stop) -> None:
        """Let routers notice that this server ends; a node that works for another outlasts it."""
        seconds = self._life.leave_seconds
        if not self._settings.serves:
            seconds += self._settings.drain_seconds + KILL_SECONDS / 2
        ended = asyncio.create_task(self._engine.process.wait(), name="end")
        hurried = asyncio.create_task(stop.hurry.wait(), name="hurry")
        await asyncio.wait({ended, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, hurried):
            task.cancel()
        await asyncio.gather(ended, hurried, return_exceptions=True)

    async def _serve(self, listening: Listening) -> int:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._engine.ended(), name="engine")
                await self._start(listening, group)
        except* TimeoutError:
            _say(f"vLLM is not healthy after {self._life.start_seconds:g} s; {self._last_lines()}")
        except* Died as deaths:
            status = deaths.exceptions[0].status  # type: ignore[union-attr]  # one task can die
            if not self._expected:
                _say(f"vLLM ended by itself with status {status}; {self._last_lines()}")
        return 1

    async def _start(self, listening: Listening, group: asyncio.TaskGroup) -> None:
        settings = self._settings
        if settings.serves:
            async with asyncio.timeout(self._life.start_seconds):
                await self._engine.healthy(url_of(settings))
            if settings.lora_file is not None:
                name = settings.served_model_name
                sync = AdapterSync(Path(settings.lora_file), name, self._client, _say)
                await sync.round(self._standing)
                group.create_task(sync.follow(self._standing), name="adapters")
            print(msgspec.json.encode(listening).decode(), flush=True)
        self._standing.phase = Phase.SERVING

    @property
    def _expected(self) -> bool:
        """Whether the engine ends because the one that it works for does."""
        return self._standing.phase is Phase.LEAVING and not self._settings.serves

    def _last_lines(self) -> str:
        if self._life.log_file is None:
            return "its log is above"
        with Path(self._life.log_file).open(errors="replace") as lines:
            end = "".join(deque(lines, LAST_LINES)).rstrip()
        return f"the end of {self._life.log_file}:\n{end}"


async def run(launch: Launch, engine_command: tuple[str, ...] = VLLM_COMMAND) -> int:
    """Start, serve, stop; return the exit status. `engine_command` stands for `vllm serve`."""
    settings = launch.settings
    try:
        if settings.lora_file is not None:
            read_adapters(Path(settings.lora_file), settings.served_model_name)
        with reserve_port(settings.host, settings.port) as reserved:
            port = reserved.getsockname()[1]
            settings = msgspec.structs.replace(settings, port=port)
            return await _run(msgspec.structs.replace(launch, settings=settings), engine_command)
    except InvalidAdapters as refusal:
        _say(f"cannot start: {refusal}")
        return 2
    except OSError as refusal:
        _say(f"cannot start: {refusal}")
        return 1


async def _run(launch: Launch, engine_command: tuple[str, ...]) -> int:
    settings, standing, stop = launch.settings, Standing(), Stop()
    async with opened(url_of(settings), launch.api_key) as client:
        probes = Probes(standing, settings.served_model_name, client if settings.serves else None)
        async with answering(probes, settings.host, launch.life.probe_port) as probe_port:
            log = launch.life.log_file
            engine = await Engine.start(
                [*engine_command, *serve_arguments(settings)],
                environment(settings, os.environ),
                None if log is None else Path(log),
            )
            server = Server(launch, engine, client, standing)
            return await server.run(stop, Listening(settings.host, settings.port, probe_port))


def main(arguments: list[str] | None = None) -> int:
    """Run the launcher as the command line says."""
    launch = parse(sys.argv[1:] if arguments is None else arguments)
    if not is_installed():
        print(HOW_TO_GET_VLLM, file=sys.stderr)
        return 3
    return asyncio.run(run(launch))


if __name__ == "__main__":
    sys.exit(main())
