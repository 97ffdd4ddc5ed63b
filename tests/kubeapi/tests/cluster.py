"""What the items are asked of: the API of the tests, or a namespace of a real cluster.

Speaks plain HTTP, so that nothing between an item and the answer can forgive or mend it.
"""

import asyncio
import json
import os
import secrets
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import yaml
from kubernetes.aio import client, config

from tests.kubeapi import FakeKubernetes

Json = dict[str, Any]
ROOT: Final = Path(__file__).parents[3]
CRDS: Final = sorted((ROOT / "manifests/crds").glob("inference*.yaml"))
DEADLINE: Final = 10.0
CORE: Final = "api/v1"
LEASES: Final = "apis/coordination.k8s.io/v1"
POOLS: Final = "apis/inference.networking.k8s.io/v1"
OBJECTIVES: Final = "apis/llm-d.ai/v1alpha2"
GROUPS: Final = {
    "leases": LEASES,
    "inferencepools": POOLS,
    "inferenceobjectives": OBJECTIVES,
    "inferencemodelrewrites": OBJECTIVES,
}
REAL: Final = bool(os.environ.get("WARMPICK_TEST_CLUSTER"))


class Reply(msgspec.Struct):
    """An answer: `json` is {} where the body is none."""

    code: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        try:
            return json.loads(self.text)
        except ValueError:
            return {}

    @property
    def reason(self) -> str:
        return str(self.json.get("reason", ""))

    @property
    def message(self) -> str:
        return str(self.json.get("message", ""))

    @property
    def fields(self) -> list[str]:
        """The fields that a 422 names."""
        causes = self.json.get("details", {}).get("causes", [])
        return [cause.get("field", "") for cause in causes]


class Cluster:
    """One namespace. `fake` is None on a real cluster."""

    def __init__(
        self, session: aiohttp.ClientSession, host: str, fake: FakeKubernetes | None
    ) -> None:
        self.session = session
        self.host = host
        self.fake = fake
        self.namespace = f"kubeapi-{secrets.token_hex(4)}"

    def path(self, resource: str, name: str = "", sub: str = "") -> str:
        """The path of a resource in the namespace; one with a slash is taken as it is."""
        if resource.startswith("/"):
            return resource
        root = f"/{GROUPS.get(resource, CORE)}/namespaces/{self.namespace}/{resource}"
        return "/".join(part for part in (root, name, sub) if part)

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        """Any request. `body`: JSON, or bytes as they are; `media`, `query`, `headers`."""
        headers = {"Content-Type": options.get("media", "application/json")}
        headers |= options.get("headers", {})
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        async with self.session.request(
            method,
            self.host + path,
            data=data,
            params=options.get("query"),
            headers=headers if body is not None else options.get("headers"),
        ) as response:
            return Reply(response.status, dict(response.headers), await response.text())

    async def get(self, resource: str, name: str = "", **query: Any) -> Reply:
        return await self.call("GET", self.path(resource, name), query=query)

    async def create(self, resource: str, body: Json, **query: Any) -> Reply:
        return await self.call("POST", self.path(resource), body, query=query)

    async def made(self, resource: str, body: Json) -> Json:
        """The object, which must be created."""
        reply = await self.create(resource, body)
        assert reply.code == 201, reply.text
        made: Json = reply.json
        return made

    async def put(self, resource: str, body: Json, sub: str = "") -> Reply:
        return await self.call("PUT", self.path(resource, body["metadata"]["name"], sub), body)

    async def patch(self, resource: str, name: str, body: Any, sub: str = "") -> Reply:
        """A JSON merge patch of an object, or of the subresource `sub`."""
        path = self.path(resource, name, sub)
        return await self.call("PATCH", path, body, media="application/merge-patch+json")

    async def delete(self, resource: str, name: str, body: Any = None, **query: Any) -> Reply:
        return await self.call("DELETE", self.path(resource, name), body, query=query)

    @asynccontextmanager
    async def watch(self, resource: str, **query: Any) -> AsyncIterator["Events"]:
        """An open watch; ends by itself after 20 seconds unless the query says otherwise."""
        query = {"watch": "true", "timeoutSeconds": "20"} | query
        async with self.session.get(self.host + self.path(resource), params=query) as response:
            yield Events(response)


class Events:
    """The events of a watch, one at a time."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self) -> Json | None:
        """The next event; None at the end of the stream. Errors: TimeoutError."""
        async with asyncio.timeout(DEADLINE):
            line = await self.response.content.readline()
        return json.loads(line) if line else None

    async def rest(self) -> list[Json]:
        """Everything up to the end of the stream."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    async def told(self, count: int) -> list[tuple[str, str]]:
        """Type and name of the next events."""
        events = [await self.next() for _ in range(count)]
        return [(each["type"], each["object"]["metadata"]["name"]) for each in events if each]


def config_map(name: str = "a", labels: Any = None, **data: Any) -> Json:
    meta = {"name": name} | ({"labels": labels} if labels else {})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def pod(name: str = "a", **spec: Any) -> Json:
    """A Pod that no scheduler takes, so that nothing but the items changes it."""
    container = {"name": "main", "image": "registry.invalid/none:1"}
    fixed = {"containers": [container], "schedulerName": "none"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": fixed | spec}


def lease(name: str = "a", **spec: Any) -> Json:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15} | spec,
    }


def pool(name: str = "a", **spec: Any) -> Json:
    fixed = {
        "selector": {"matchLabels": {"app": "vllm"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "picker", "port": {"number": 9002}},
    }
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name},
        "spec": fixed | spec,
    }


def objective(name: str = "a", **spec: Any) -> Json:
    return {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name},
        "spec": {"priority": 1, "poolRef": {"name": "pool"}} | spec,
    }


@asynccontextmanager
async def opened(fake: FakeKubernetes | None, folder: Path) -> AsyncIterator[Cluster]:
    """A fresh namespace of the API of the tests, or (None) of the cluster of $KUBECONFIG."""
    host, headers, context = await _reached(fake, folder)
    headers["User-Agent"] = "items/1"
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        cluster = Cluster(session, host, fake)
        yield await _prepared(cluster)
        await cluster.call("DELETE", f"/api/v1/namespaces/{cluster.namespace}")


async def _reached(
    fake: FakeKubernetes | None, folder: Path
) -> tuple[str, dict[str, str], ssl.SSLContext | bool]:
    """Where it is, who asks, and whom to trust; over TLS all that comes from a kubeconfig."""
    if fake is not None and fake.authority is None:
        return fake.url, {"Authorization": f"Bearer {fake.admin_token}"}, True
    path = None if fake is None else str(fake.kubeconfig(folder / "kubeconfig"))
    loaded = client.Configuration()
    await config.load_kube_config(path, client_configuration=loaded, persist_config=False)
    key = loaded.api_key.get("authorization") or loaded.api_key.get("BearerToken")
    context = ssl.create_default_context(cafile=loaded.ssl_ca_cert)
    if not loaded.verify_ssl:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if loaded.cert_file:
        context.load_cert_chain(loaded.cert_file, loaded.key_file)
    return loaded.host, {"Authorization": key} if key else {}, context


async def _prepared(cluster: Cluster) -> Cluster:
    body = {"metadata": {"name": cluster.namespace}}
    made = await cluster.call("POST", "/api/v1/namespaces", body)
    assert made.code == 201, made.text
    if cluster.fake is not None:
        return cluster
    for path in CRDS:
        crd = yaml.safe_load(path.read_text())
        where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        reply = await cluster.call("POST", where, crd)
        assert reply.code in (201, 409), reply.text
    query = {"fieldSelector": "metadata.name=default"}
    async with cluster.watch("serviceaccounts", **query) as events:
        await events.next()  # a controller makes it; before that no Pod is let in
    return cluster
