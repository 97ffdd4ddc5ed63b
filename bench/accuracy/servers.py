"""The model servers of a run: they stay from identity to identity, their caches do not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from bench.accuracy.engines import MODEL, Engine, Ports
from bench.accuracy.observation import Message
from epp.gateway.processes import Process, free_port

COUNT = 2
_RESET_SECONDS = 20.0
_KILL_SECONDS = 20.0
_PAUSE = 0.05


class Servers:
    """`COUNT` equal servers. Made by `running`."""

    def __init__(self, engine: Engine, log_dir: Path, client: aiohttp.ClientSession) -> None:
        self.engine = engine
        self.log_dir = log_dir
        self.ports = [Ports(*(free_port() for _ in range(3))) for _ in range(COUNT)]
        self._client = client
        self._processes: dict[Ports, Process] = {}

    @property
    def targets(self) -> tuple[str, ...]:
        """Where they listen, as `ip:port`."""
        return tuple(ports.target for ports in self.ports)

    async def start(self, ports: Ports) -> None:
        """Start the server of these ports."""
        self._processes[ports] = await self.engine.start(ports, self.log_dir)

    async def restart(self, ports: Ports) -> None:
        """End a server without grace, and start it again where it was."""
        await self._processes.pop(ports).stop(0)
        async with asyncio.timeout(_KILL_SECONDS):
            while not _free(ports.http):  # its children notice a moment later
                await asyncio.sleep(_PAUSE)
        await self.start(ports)

    async def stop(self) -> None:
        """End all servers."""
        stops = (process.stop(self.engine.grace) for process in self._processes.values())
        await asyncio.gather(*stops)

    async def reset(self, *servers: Ports) -> None:
        """Empty caches once nobody uses them. Raises `TimeoutError` if somebody stays."""
        async with asyncio.timeout(_RESET_SECONDS):
            for target in [ports.target for ports in servers]:
                while not (await self._post(target, "/reset_prefix_cache"))["success"]:
                    await asyncio.sleep(_PAUSE)
                # vLLM publishes that its cache was cleared with the next step that it runs.
                await self._post(target, "/v1/completions", {"prompt": "a", "max_tokens": 1})

    async def tokenize(self, chats: Iterable[Sequence[Message]]) -> list[list[int]]:
        """Ask an engine which tokens chats are, with its template around them."""
        target = self.targets[0]
        return [
            (await self._post(target, "/tokenize", {"messages": chat}))["tokens"] for chat in chats
        ]

    async def _post(
        self, target: str, path: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        sent = None if body is None else {"model": MODEL, **body}
        async with self._client.post(f"http://{target}{path}", json=sent) as response:
            response.raise_for_status()
            answer: dict[str, Any] = await response.json()
            return answer


def _free(port: int) -> bool:
    with socket.socket() as trial, contextlib.suppress(OSError):
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(("127.0.0.1", port))
        return True
    return False


@contextlib.asynccontextmanager
async def running(engine: Engine, log_dir: Path) -> AsyncIterator[Servers]:
    """Start the servers; they are stopped on the way out."""
    await engine.prepare(log_dir)
    async with aiohttp.ClientSession() as client:
        servers = Servers(engine, log_dir, client)
        try:
            async with asyncio.TaskGroup() as group:
                for ports in servers.ports:
                    group.create_task(servers.start(ports))
            yield servers
        finally:
            await servers.stop()
