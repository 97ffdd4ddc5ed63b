"""Where attacks happen: a picker with model servers behind it, and one beside it that is let be."""

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import grpc
import grpc.aio
import msgspec
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from bench.adversary.footprint import Footprint
from bench.adversary.others import READER, Others
from bench.adversary.prober import Order, Prober, dial
from bench.extproc.pickers import READY_S, Product, endpoints_file
from bench.extproc.stack import start_backends
from epp.adapters.extproc.transports import Transport
from epp.adapters.tls import certificate
from epp.gateway.processes import Process, free_port, spawn
from tests.adapters.ext_proc_peer import Peer

SERVERS = 4
DRAIN_S = 5
STOP_S = DRAIN_S + 10.0
"""How long a picker may take to end: its drain, and what follows."""
_PAGE_S = 20.0
_HELD = "warmpick_event_loop_held_seconds"


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What a picker is started with: `flags`, and `{folder}` in them is where its files lie.

    `events`: it tokenizes prompts and follows KV events. `render`: a server tokenizes them for it,
    `review`: an API server reviews who reads its pages; attackers say what these answer.
    """

    tls: bool = False
    flags: tuple[str, ...] = ()
    events: bool = False
    render: bool = False
    review: bool = False


EVENTS = Setting(events=True, flags=("--hold=off",))
"""Others are not held while servers are at a million tokens: what they wait for is the picker."""
RENDER_S = 2
"""How long a picker waits for a render server."""
_CONFIG = """
plugins:
- type: token-producer
  parameters: {{modelName: m, tokenizer: {model}}}
- type: precise-prefix-cache-producer
  parameters: {{kvEventsConfig: {{podDiscoveryConfig: {{socketPort: {port}}}}}}}
- type: least-ttft-picker
"""
_RENDERED = """
plugins:
- type: token-producer
  parameters: {{modelName: m, vllm: {{url: 'http://127.0.0.1:{port}', timeout: {seconds}s}}}}
- type: least-ttft-picker
"""
_KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
clusters: [{{name: c, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]
users: [{{name: u, user: {{token: t}}}}]
"""


class Ground:
    """A picker under attack. An attacker may use all that is public here."""

    def __init__(
        self, folder: Path, transport: Transport, good: Sequence[int], *, tls: bool
    ) -> None:
        self.folder = folder
        self.transport = transport
        self.tls = tls
        self.good = tuple(good)
        self.endpoints = folder / "endpoints.yaml"
        self.port = self.metrics_port = self.events_port = self.pid = 0
        self.others = Others()
        self.process: Process
        self.prober: Prober
        self.footprint: Footprint

    @property
    def cert(self) -> str:
        """What a client of the TLS port trusts."""
        return str(self.folder / "tls.crt") if self.tls else ""

    def know(self, *ports: int) -> None:
        """Have these servers in the endpoints file beside the good ones, in one step."""
        draft = self.endpoints.with_suffix(".draft")
        endpoints_file((*self.good, *ports), draft)
        draft.replace(self.endpoints)

    def channel(self) -> contextlib.AbstractAsyncContextManager[grpc.aio.Channel]:
        """A connection of its own to the picker."""
        return dial(self.port, self.cert)

    async def page(self) -> str:
        """The picker's metrics page."""
        limit = aiohttp.ClientTimeout(total=_PAGE_S)
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        asked = {"authorization": f"Bearer {READER}"}
        async with aiohttp.ClientSession(timeout=limit, headers=asked) as client:
            return await (await client.get(url)).text()

    async def metric(self, name: str) -> float:
        """The sum of all samples of a name."""
        return sum(sample.value for sample in await self._samples(name))

    async def holds(self) -> dict[float, int]:
        """How often the event loop was held for up to so many seconds since the start, by the page.

        The process used the CPU meanwhile, in whatever thread: others' use of it does not count.
        """
        buckets = await self._samples(f"{_HELD}_bucket")
        return {float(sample.labels["le"]): int(sample.value) for sample in buckets}

    async def _samples(self, name: str) -> list[Sample]:
        families = text_string_to_metric_families(await self.page())
        return [each for family in families for each in family.samples if each.name == name]

    async def terminate(self) -> str:
        """SIGTERM; what is wrong with how it ends, "" for nothing."""
        if not self.process.alive():
            return "the process had ended"
        os.kill(self.pid, signal.SIGTERM)
        try:
            code = await self.process.wait_exit(STOP_S)
        except TimeoutError:
            return f"SIGTERM had no effect within {STOP_S:g} s"
        return f"SIGTERM ended it with status {code}" if code else ""


@contextlib.asynccontextmanager
async def prepared(setting: Setting, transport: Transport, logs: Path) -> AsyncIterator[Ground]:
    """Start everything; end it by force, logs stay in `logs`."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmpick-ground-")))
        backends, ports = await start_backends(SERVERS, logs)
        stack.push_async_callback(backends.stop, 0)
        made = Ground(folder, transport, ports, tls=setting.tls)
        made.know()
        await stack.enter_async_context(made.others)
        control = Product(endpoints_file(ports, folder / "control.yaml"), transport)
        target = Product(made.endpoints, transport)
        made.events_port = free_port()
        flags = (*_flags(setting, folder, made.events_port), *_asking(setting, made))
        made.process = await spawn("target", (*target.argv, *flags), log_dir=logs)
        stack.push_async_callback(made.process.stop, 0)
        other = await spawn("control", (*control.argv, *_flags(setting, folder, 1)), log_dir=logs)
        stack.push_async_callback(other.stop, 0)
        await asyncio.gather(
            made.process.wait_http(target.ready_url, READY_S),
            other.wait_http(control.ready_url, READY_S),
        )
        made.port, made.pid = target.grpc_port, made.process.pid
        made.metrics_port = int(target.ready_url.split(":")[2].split("/")[0])
        made.footprint = stack.enter_context(Footprint(made.pid))
        order = Order(made.port, control.grpc_port, made.cert)
        made.prober = await stack.enter_async_context(Prober(order))
        yield made


def _flags(setting: Setting, folder: Path, events_port: int) -> tuple[str, ...]:
    """The flags of a picker, and the files that they name."""
    flags: tuple[str, ...] = (
        *(f"--drain-timeout={DRAIN_S}s", "--scrape-interval=200ms"),
        "--max-held-bytes=512Mi",  # as in a container of 2 GiB, which the footprint stands for
    )
    if setting.events:
        flags += (f"--config-file={_configuration(folder, events_port)}",)
    if setting.tls:
        if not (folder / "tls.key").exists():
            for name, pem in zip(("tls.key", "tls.crt"), certificate(None), strict=True):
                (folder / name).write_bytes(pem)
        flags += ("--secure-serving=true", f"--cert-path={folder}")
    return flags + tuple(each.format(folder=folder) for each in setting.flags)


def _asking(setting: Setting, ground: Ground) -> tuple[str, ...]:
    """The flags of a picker that asks the attacker's servers; the one beside it asks nobody."""
    flags: tuple[str, ...] = ()
    if setting.render:
        config = ground.folder / "render.yaml"
        config.write_text(
            _RENDERED.format(port=ground.others.port, seconds=RENDER_S), encoding="utf-8"
        )
        flags += (f"--config-file={config}",)
    if setting.review:
        kubeconfig = ground.folder / "kubeconfig"
        kubeconfig.write_text(_KUBECONFIG.format(port=ground.others.port), encoding="utf-8")
        flags += ("--metrics-endpoint-auth=true", f"--kubeconfig={kubeconfig}")
    return flags


def _configuration(folder: Path, port: int) -> Path:
    """A configuration that makes tokens and follows events; its file."""
    from tests.adapters.tokens.folders import byte_level, write  # noqa: PLC0415 (slow)

    made = folder / f"config-{port}.yaml"
    write(folder / "model", byte_level())
    made.write_text(_CONFIG.format(model=folder / "model", port=port), encoding="utf-8")
    return made


async def read_replies(peer: Peer) -> None:
    """Read what a stream is answered up to its end, however it ends."""
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        while await peer.receive():
            pass
