"""The addresses of the servers that `epp up` was given: by URLs, or by a file; both are followed.

They are written to two files: the picker's endpoints file, and Envoy's `SERVERS_FILE`.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NoReturn

from epp.errors import ConfigError
from epp.protocol.endpoints import MAX_BYTES, parse_endpoints
from epp.system.daemon_thread import in_daemon_thread
from epp.system.files import FollowedFile
from epp.system.host_names import HostNames
from epp.up.pages import PageRelay
from epp.up.proxy import SERVERS_FILE, put, servers_file
from epp.up.servers import Address, ModelServer, addresses_of

ENDPOINTS_FILE = "endpoints.json"
RESOLVE_SECONDS = 5.0
FILE_SECONDS = 0.5

Say = Callable[[str], None]


class AddressBook:
    """The addresses of `servers`, or of the endpoints file `path` if there are none.

    `run` follows both for changes. `say` is called with each change, and with each problem; if
    something cannot be resolved or read, its last addresses stay.
    """

    def __init__(
        self,
        servers: tuple[ModelServer, ...],
        path: Path | None,
        folder: Path,
        say: Say,
        names: HostNames | None = None,
    ) -> None:
        self.addresses: tuple[Address, ...] = ()
        self._servers, self._path, self._folder, self._say = servers, path, folder, say
        self._relay: PageRelay | None = None
        self._file = FollowedFile(path, MAX_BYTES) if path else None
        self._names = names or HostNames()
        self._problems: dict[str, str] = {}

    @property
    def endpoints_path(self) -> Path:
        """The file that the picker reads its endpoints from."""
        return self._path or self._folder / ENDPOINTS_FILE

    async def load(self, relay: PageRelay | None) -> None:
        """Find the addresses for the first time. Raises `ConfigError` for a file it cannot read."""
        self._relay = relay
        await self._write(await self._look() or ())

    async def run(self) -> NoReturn:
        """Follow changes until cancelled."""
        while True:
            await asyncio.sleep(FILE_SECONDS if self._path else RESOLVE_SECONDS)
            await self.refresh()

    async def refresh(self) -> None:
        """Apply what has changed."""
        try:
            found = await self._look()
        except ConfigError as error:
            self._trouble(str(self._path), str(error))
            return
        if found is None:
            return
        if self._path and self._problems.pop(str(self._path), ""):
            self._say(f"{self._path} is valid again")
        if found == self.addresses:
            return
        self._tell(found)
        try:
            await self._write(found)
        except Exception:  # the job that is started again is to find the change again
            if self._file is not None:
                self._file.forget()
            raise

    async def _look(self) -> tuple[Address, ...] | None:
        """Return the present addresses; None if the file is unchanged.

        Raises `ConfigError`.
        """
        if self._file is None:
            return await self._resolved()
        return await in_daemon_thread(self._listed, self._file)

    def _listed(self, file: FollowedFile) -> tuple[Address, ...] | None:
        text = file.changed()
        if text is None:
            return None
        try:
            endpoints = parse_endpoints(text)
        except ConfigError as error:
            raise ConfigError(str(error), str(self._path)) from None
        for at, each in enumerate(endpoints):
            if each.app_protocol == "https":
                raise ConfigError(
                    f"endpoints[{at}].appProtocol: `epp up` speaks plaintext to servers of a file; "
                    f"give it URLs instead: https://{each.target}",
                    str(self._path),
                )
        return tuple(Address(each.name, each.address, each.port) for each in endpoints)

    async def _resolved(self) -> tuple[Address, ...]:
        every = await asyncio.gather(*map(self._resolve, self._servers))
        found: tuple[Address, ...] = ()
        for server, known in zip(self._servers, every, strict=True):
            own = addresses_of(server, known, found)
            ignored = f"{server.authority} is ignored: all its addresses belong to other URLs too"
            self._trouble(server.authority, ignored if known and not own else "")
            found += own
        return found

    async def _resolve(self, server: ModelServer) -> tuple[str, ...]:
        if server.address:
            return (server.address,)
        found, problem = await in_daemon_thread(self._names.resolve, server.host, server.port)
        self._trouble(server.host, problem)
        return found

    # Files and messages.

    async def _write(self, addresses: tuple[Address, ...]) -> None:
        pages = await self._relay.hosts(addresses) if self._relay else {}
        put(self._folder / SERVERS_FILE, servers_file(addresses))
        if self._path is None:
            put(self.endpoints_path, _endpoints_file(addresses, pages))
        self.addresses = addresses

    def _tell(self, found: tuple[Address, ...]) -> None:
        before, after = set(self.addresses), set(found)
        for kind, some in (("added", after - before), ("removed", before - after)):
            for each in sorted(some, key=lambda address: address.name):
                self._say(f"{kind} {_named(each)}")

    def _trouble(self, subject: str, problem: str) -> None:
        """Report a problem once; "" ends it."""
        if self._problems.get(subject, "") != problem:
            self._problems[subject] = problem
            if problem:
                self._say(problem)


def _named(address: Address) -> str:
    return address.name if address.name == address.target else f"{address.name} ({address.target})"


def _endpoints_file(addresses: Iterable[Address], pages: Mapping[str, str]) -> str:
    """Return the picker's endpoints file as JSON, which is YAML too; `pages` are by name."""
    entries = [
        {"name": each.name, "address": each.ip, "port": each.port}
        | ({"metricsHost": pages[each.name]} if each.name in pages else {})
        for each in addresses
    ]
    return json.dumps({"endpoints": entries})
