"""A picker in a user's own program: it opens no port, and leaves the process as it is."""

import asyncio
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, NoReturn, Self
from weakref import WeakSet

import msgspec

from epp.adapters.telemetry.http import OperatorServer, OperatorSettings
from epp.app.core import PickerCore
from epp.app.discovery import GivenEndpoints
from epp.app.jobs import attempt, keep_running
from epp.app.observing.views import DecisionView
from epp.app.options import ServeOptions
from epp.errors import ConfigError, ShuttingDown, reason
from epp.inprocess.pick import Pick, PickerContext, RawRequest
from epp.model.endpoint import HTTPS, LAST_PORT, Endpoint, Target
from epp.model.kv_changes import CacheCleared
from epp.protocol.endpoints import parse_endpoints
from epp.protocol.extproc.observation import Observation
from epp.system.daemon_thread import in_daemon_thread
from epp.system.host_names import HostNames
from epp.up.servers import Address, ModelServer, addresses_of, ip_or_none, model_servers

Given = str | Mapping[str, object]
"""A model server: `host:port` or its URL; or a mapping, as one of an endpoints file."""
Body = bytes | bytearray | memoryview | str | Mapping[str, object]
"""The body of a request: JSON, or what is encoded as JSON."""

_LOOPBACK: Final = "127.0.0.1"
_NOT_OPEN: Final = "the picker is not open: async with open_picker(...) as picker"
_ELSEWHERE: Final = "the picker was opened on another event loop: open one on each"


class InProcessPicker:
    """A picker for the requests of this program; used with `async with` or `start` and `close`.

    All of its methods are called on the event loop that opened it. There may be several in a
    process. It handles no signals, sets up no logs, and opens no port unless it has a metrics port.

    `open_picker` makes one. Everything else that `epp serve` can do, such as a pool in Kubernetes
    or replicas, is a field of `ServeOptions`.
    """

    def __init__(
        self,
        options: ServeOptions,
        endpoints: Given | Iterable[Given] = (),
        *,
        metrics_port: int | None = None,
        unreachable: tuple[type[BaseException], ...] = (ConnectionError,),
    ) -> None:
        _check_unreachable(unreachable)
        if metrics_port is not None and not 0 <= metrics_port <= LAST_PORT:
            raise ConfigError(f"{metrics_port} is not a port; 0 is any free one", "metrics_port")
        # No proxy limits how long a request waits, and all that is reported of a response is read.
        self._options = msgspec.structs.replace(
            options, buffered_wait=math.inf, observation=Observation(1)
        )
        self._first = endpoints
        self._metrics_port = metrics_port
        self._unreachable = unreachable
        self._context: PickerContext | None = None
        self._operators: OperatorServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._urls: Mapping[Target, str] = {}
        self._replacing = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def start(self) -> Self:
        """Read the endpoints, and wait at most 0.3 seconds for their first metrics pages.

        Raises `ConfigError` for endpoints that cannot be used and a port that is taken.
        """
        if self._context is not None:
            raise RuntimeError("a picker is opened once")
        self._loop = asyncio.get_running_loop()
        core = PickerCore(self._options, lambda: None, quiet=True)
        self._context = PickerContext(
            core,
            self._check,
            core.exchanges(),
            core.clock,
            self._url,
            self._unreachable,
            WeakSet(),
        )
        try:
            if isinstance(core.discovery, GivenEndpoints) and self._first:
                await self.set_endpoints(self._first)
            await core.discovery.load()
            for name, job in core.jobs():
                running = keep_running(name, job)
                self._tasks.append(asyncio.create_task(running, name=f"picker: {name}"))
            await core.reported()
            await core.warmed()
            await self._listen(core)
        except BaseException:
            await self.close()
            raise
        return self

    async def _listen(self, core: PickerCore) -> None:
        if self._metrics_port is None:
            return
        settings = OperatorSettings(debug=core.pages())
        operators = OperatorServer(
            core.telemetry, lambda: core.ready, _LOOPBACK, self._metrics_port, settings
        )
        try:
            await operators.start()
        except OSError as error:
            raise ConfigError(f"cannot listen: {reason(error)}", "metrics_port") from error
        self._operators = operators

    async def close(self) -> None:
        """End what is open: picks that wait get `ShuttingDown`, others count as given up."""
        if self._context is None or self._closed:
            return
        self._check_loop()
        self._closed = True
        core, picks = self._context.core, self._context.picks
        try:
            await attempt("director", core.director.stop())
            for each in list(picks):
                each.shut()
            for name, stop in core.stops():
                await attempt(name, stop)
            if self._operators is not None:
                await attempt("operators", self._operators.stop())
        finally:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def pick(
        self,
        body: Body,
        headers: Mapping[str, str] | None = None,
        *,
        path: str = "/v1/chat/completions",
        avoid: Collection[Endpoint] = (),
    ) -> Pick:
        """Return the pick of a request, to be entered: `async with picker.pick(body) as pick`.

        `body` and `path` are what the model server gets: any API that the configuration's parsers
        read. Prompts may be token ids where the API takes them (`/v1/completions`). `headers` are
        those of the request: they may name its objective, its flow and a session, as for a gateway.
        It goes to an endpoint of `avoid`, such as one that it has failed at, only if no other one
        is up and serves its model.
        """
        context = self._opened()
        if not path.startswith("/"):
            raise ValueError(f"the path {path!r} does not begin with a slash")
        sent = {"content-type": "application/json"}
        sent |= {name.lower(): value for name, value in (headers or {}).items()}
        avoided = frozenset(each.target for each in avoid)
        return Pick(RawRequest(_encoded(body), sent, path, avoided), context)

    async def set_endpoints(self, endpoints: Given | Iterable[Given]) -> None:
        """Replace the endpoints; those that stay keep what is known of them.

        If it is called again meanwhile, the last call counts. Raises `ConfigError`, and changes
        nothing, for endpoints that cannot be used, and if the picker follows a file or a pool in
        Kubernetes.
        """
        core = self._opened().core
        if not isinstance(core.discovery, GivenEndpoints):
            raise ConfigError("the picker finds its endpoints by itself", "endpoints")
        given = (endpoints,) if isinstance(endpoints, str | Mapping) else tuple(endpoints)
        async with self._replacing:
            found, urls = await in_daemon_thread(_resolved, given)
            self._check()
            self._urls = {**self._urls, **urls}  # those of requests that run stay
            core.discovery.replace(found)

    def caches_cleared(self, endpoint: Endpoint | None = None) -> None:
        """Report that an endpoint has emptied its prefix cache; without one, that all have.

        Engines do so when they get new weights, and report it only by KV events. Requests that
        run keep what they hold.
        """
        core = self._opened().core
        for each in core.fleet.endpoints if endpoint is None else (endpoint,):
            core.fleet.apply(CacheCleared(each.id), core.clock())

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The endpoints that are known."""
        return tuple(self._opened().core.fleet.endpoints)

    @property
    def metrics_port(self) -> int | None:
        """The port at which metrics and `epp explain` are served, on this machine; None: none."""
        return None if self._operators is None else self._operators.port

    def metrics(self) -> str:
        """Return the picker's metrics in Prometheus' text format."""
        return "".join(self._opened().core.telemetry.page())

    def explain(self, request: str) -> tuple[DecisionView, ...]:
        """Return why a request went where it did, and how it ended, as `epp explain` shows it.

        `request` is a pick's id or the request's `x-request-id`. The last 1,024 decisions are kept.
        """
        return self._opened().core.explain(request)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, for a process of `multiprocessing` or an actor of Ray."""
        raise TypeError("a picker cannot be pickled: open one in the process that picks")

    def _opened(self) -> PickerContext:
        if self._context is None:
            raise RuntimeError(_NOT_OPEN)
        return self._context

    def _check(self) -> None:
        """Raise unless the picker takes requests, and on this event loop."""
        if self._closed:
            raise ShuttingDown("the picker is closed")
        self._check_loop()

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(_ELSEWHERE)

    def _url(self, endpoint: Endpoint) -> str:
        return self._urls.get(endpoint.target) or _base_of(endpoint)


def _check_unreachable(kinds: object) -> None:
    """Raise `ConfigError` now for what `isinstance` would refuse later, when a request fails."""
    for kind in kinds if isinstance(kinds, tuple) else (kinds,):
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigError(f"{kind!r} is not a class of exceptions", "unreachable")


def _encoded(body: Body) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return msgspec.json.encode(body)


def _resolved(given: Sequence[Given]) -> tuple[tuple[Endpoint, ...], Mapping[Target, str]]:
    """Return the endpoints that were given, and the base URLs of their targets.

    Asks name servers. Raises `ConfigError`.
    """
    for position, one in enumerate(given):
        if not isinstance(one, (str, Mapping)):
            problem = f"{one!r} is neither `host:port`, a URL nor a mapping"  # type: ignore[unreachable]
            raise ConfigError(problem, f"endpoints[{position}]")
    urls = [each if "://" in each else f"http://{each}" for each in given if isinstance(each, str)]
    entries = [_with_ip(dict(each)) for each in given if not isinstance(each, str)]
    bases: dict[Target, str] = {}
    for server in model_servers(urls):
        addresses = _addresses(server)
        for each in addresses:
            entry = {"name": each.name, "address": each.ip, "port": each.port}
            entries.append(entry | {"appProtocol": server.scheme})
            authority = server.authority if len(addresses) == 1 else each.target
            bases[Target(each.target)] = f"{server.scheme}://{authority}"
    endpoints = parse_endpoints(msgspec.json.encode({"endpoints": entries}))
    for endpoint in endpoints:
        bases.setdefault(endpoint.target, _base_of(endpoint))
    return endpoints, bases


def _base_of(endpoint: Endpoint) -> str:
    """Return the base URL of an endpoint that was not given by a URL."""
    scheme = "https" if endpoint.app_protocol == HTTPS else "http"
    return f"{scheme}://{endpoint.target}"


def _with_ip(entry: dict[str, object]) -> dict[str, object]:
    """Return an entry of an endpoints file with its host name replaced by the first IP address."""
    host = entry.get("address")
    if not isinstance(host, str) or ip_or_none(host) is not None:
        return entry
    return {**entry, "address": _addresses(ModelServer("http", host, 0))[0].ip}


def _addresses(server: ModelServer) -> Sequence[Address]:
    """Return the addresses of a server. Raises `ConfigError` if its name has none."""
    if server.address:
        return addresses_of(server, (server.address,))
    found, problem = HostNames().resolve(server.host, server.port)
    if not found:
        raise ConfigError(problem)
    return addresses_of(server, found)
