"""The API server as tests hold it: a real port, objects put from inside, and faults."""

import asyncio
import base64
import secrets
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import yaml

from tests.held_port import held_port
from tests.kubeapi.access import ADMINS, AUTHENTICATED, Access, Identity, rules_of
from tests.kubeapi.authority import Authority
from tests.kubeapi.faults import Effect, Fault
from tests.kubeapi.registry import Registry
from tests.kubeapi.request import Ask
from tests.kubeapi.server import HOST, Server, Stream
from tests.kubeapi.store import Store
from tests.kubeapi.writes import Target, merge

Json = dict[str, Any]


@lru_cache
def _parsed(text: str) -> list[Json]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [value for value in yaml.load_all(text, loader) if value is not None]


class FakeKubernetes:
    """`async with FakeKubernetes(crds=[...]) as api`; everything else once it is entered.

    `crds` are files, each with one or more CustomResourceDefinitions. With `tls` the server has a
    certificate of `api.authority` and takes client certificates of it.
    """

    def __init__(self, *, crds: Iterable[Path] = (), tls: bool = False) -> None:
        self.store = Store()
        self.registry = Registry(self.store)
        self.access = Access()
        self.authority = Authority() if tls else None
        self._server: Server | None = None
        self._stack = ExitStack()
        self.admin_token = self.token("admin", groups=(ADMINS,))
        for path in crds:
            self.install(path)

    async def __aenter__(self) -> Self:
        port = self._stack.enter_context(held_port())
        self._server = Server(self.registry, self.access, port)
        await self.up()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.server.flowing.set()
        await self.down()
        self._stack.close()

    @property
    def server(self) -> Server:
        assert self._server is not None, "enter it first"
        return self._server

    @property
    def url(self) -> str:
        scheme = "http" if self.authority is None else "https"
        return f"{scheme}://{HOST}:{self.server.port}"

    # Who may ask, and with what.

    def token(
        self,
        user: str,
        rules: Iterable[Json] = (),
        namespace: str | None = None,
        groups: tuple[str, ...] = (),
    ) -> str:
        """A new bearer token of `user`, who gets `rules`, in the form of a Role's: for one
        namespace, or (None) for the whole cluster.
        """
        made = secrets.token_urlsafe(24)
        self.access.tokens[made] = Identity(user, (*groups, AUTHENTICATED))
        self.access.rules.setdefault(user, []).extend(rules_of(rules, namespace))
        return made

    def revoke(self, token: str) -> None:
        """The token is not known any more: 401."""
        del self.access.tokens[token]

    def kubeconfig(
        self, path: Path, *, user: Json | None = None, namespace: str = "default"
    ) -> Path:
        """Write a kubeconfig; `user` as that file has it (default: the administrator's token)."""
        cluster: Json = {"server": self.url}
        if self.authority is not None:
            root = base64.b64encode(self.authority.certificate).decode()
            cluster["certificate-authority-data"] = root
        context = {"cluster": "fake", "user": "tester", "namespace": namespace}
        said = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "tester", "user": user or {"token": self.admin_token}}],
            "contexts": [{"name": "fake", "context": context}],
        }
        path.write_text(yaml.safe_dump(said))
        return path

    def in_cluster(self, folder: Path, token: str, namespace: str = "default") -> dict[str, str]:
        """Write what a Pod finds in its service account's folder; returns its environment."""
        (folder / "token").write_text(token)
        (folder / "namespace").write_text(namespace)
        if self.authority is not None:
            (folder / "ca.crt").write_bytes(self.authority.certificate)
        return {"KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(self.server.port)}

    # Objects, as the controllers and other users of the cluster change them.

    def _target(self, kind: str, namespace: str, name: str, group: str | None = None) -> Target:
        found = [
            each
            for each in self.registry.kinds.values()
            if each.kind == kind and group in (None, each.group)
        ]
        if len(found) != 1:
            raise LookupError(f"{len(found)} kinds are called {kind}; say its group")
        where = namespace if found[0].namespaced else ""
        return self.registry.at(found[0].resource, where, name)

    def put(self, value: Json) -> Json:
        """Create or replace an object with its status, in one write. Errors: ApiError 400, 422."""
        group, _, version = value["apiVersion"].rpartition("/")
        meta = value["metadata"]
        target = self._target(value["kind"], meta.get("namespace", "default"), meta["name"], group)
        target = msgspec.structs.replace(target, version=version)
        old = self.store.get(target.kind.resource, target.place)
        if old is None:
            return self.registry.create(target, value, trusted=True)
        return self.registry.replace(target, old, value, trusted=True)

    def get(
        self, kind: str, name: str, namespace: str = "default", group: str | None = None
    ) -> Json:
        """Errors: ApiError 404."""
        return self.registry.find(self._target(kind, namespace, name, group))

    def patch(
        self,
        kind: str,
        name: str,
        patch: Json,
        namespace: str = "default",
        group: str | None = None,
    ) -> Json:
        """A JSON merge patch of the whole object, status included. Errors: ApiError 404, 422."""
        target = self._target(kind, namespace, name, group)
        old = self.registry.find(target)
        return self.registry.replace(target, old, merge(old, patch), trusted=True)

    def delete(
        self, kind: str, name: str, namespace: str = "default", group: str | None = None
    ) -> Json:
        """Gone at once, as when the kubelet is done with a Pod. Errors: ApiError 404."""
        return self.registry.remove(self._target(kind, namespace, name, group))

    def install(self, path: Path) -> None:
        """Create the CustomResourceDefinitions of a file."""
        for value in _parsed(path.read_text()):
            self.put(value)

    def uninstall(self, name: str) -> None:
        """Delete a definition (`PLURAL.GROUP`) and all its objects."""
        self.delete("CustomResourceDefinition", name)

    # What has been asked.

    @property
    def requests(self) -> list[Ask]:
        """Every request so far, in order of arrival."""
        return self.server.requests

    @property
    def watches(self) -> list[Stream]:
        """The watches that are open."""
        return self.server.streams

    async def asked(
        self, matches: Callable[[Ask], bool], *, after: int = 0, within: float = 10.0
    ) -> Ask:
        """The first request past number `after` that matches. Errors: TimeoutError (seconds)."""
        found: asyncio.Future[Ask] = asyncio.get_running_loop().create_future()

        def heard(ask: Ask) -> None:
            if len(self.requests) > after and not found.done() and matches(ask):
                found.set_result(ask)

        for ask in self.requests[after:]:
            heard(ask)
        self.server.heard.append(heard)
        try:
            async with asyncio.timeout(within):
                return await found
        finally:
            self.server.heard.remove(heard)

    # Faults.

    def fail(
        self, effect: Effect, *, verb: str = "", resource: str = "", times: int | None = 1
    ) -> Fault:
        """Let an effect of `faults` fall on the next requests that match (None: on all)."""
        fault = Fault(effect, verb, resource, times)
        self.server.faults.append(fault)
        return fault

    def mend(self) -> None:
        """No more faults."""
        self.server.faults.clear()
        self.server.drip = None
        self.server.flowing.set()

    def compact(self) -> None:
        """Forget all history: every older resourceVersion is Expired."""
        self.store.compact()

    def drop_watches(self, resource: str = "") -> None:
        """Reset the connections of open watches."""
        for stream in tuple(self.watches):
            if resource in ("", stream.ask.resource):
                stream.abort()

    def finish_watches(self, resource: str = "") -> None:
        """End open watches in good order, as at their time-out."""
        for stream in tuple(self.watches):
            if resource in ("", stream.ask.resource):
                stream.finish()

    def bookmark(self, resource: str = "") -> None:
        """Send a bookmark now on the watches that allow them."""
        for stream in tuple(self.watches):
            if resource in ("", stream.ask.resource):
                stream.watch.bookmark()

    def freeze(self) -> None:
        """Connections stay open and nothing is sent on them, until `thaw`."""
        self.server.flowing.clear()

    def thaw(self) -> None:
        self.server.flowing.set()

    def drip(self, size: int, seconds: float) -> None:
        """Every body goes out `size` bytes at a time with a pause between."""
        self.server.drip = (size, seconds)

    async def down(self) -> None:
        """The server stops: connections are reset, new ones refused."""
        await self.server.stop()

    async def up(self) -> None:
        """The server starts, at the port where it was."""
        await self.server.start(None if self.authority is None else self.authority.context())

    async def restart(self, *, keep_history: bool = False) -> None:
        """Down and up again. The watch cache begins anew at the present revision, so that older
        resourceVersions are Expired, unless `keep_history`.
        """
        await self.down()
        if not keep_history:
            self.compact()
        await self.up()
