"""What the server says that it serves: /version, /api, /apis and the OpenAPI v3 index.

The aggregated form of discovery is not offered, which clients take as an older server's answer.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from tests.kubeapi.kinds import Kind
from tests.kubeapi.status import no_such_path

Json = dict[str, Any]
HEALTH: Final = ("/healthz", "/livez", "/readyz")
VERSION: Final = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.0",
    "gitCommit": "0000000000000000000000000000000000000000",
    "gitTreeState": "clean",
    "buildDate": "2026-04-22T00:00:00Z",
    "goVersion": "go1.26.0",
    "compiler": "gc",
    "platform": "linux/amd64",
}
VERBS: Final = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)
WRITES: Final = {
    "post": "create",
    "put": "update",
    "patch": "patch",
}


def answer(kinds: Iterable[Kind], path: str) -> Json | str:
    """The document at a path that is no resource. Errors: PlainTextError 404."""
    if path in HEALTH:
        return "ok"
    root, *rest = path.strip("/").split("/")
    if root not in ROOTS:
        raise no_such_path()
    return ROOTS[root](list(kinds), rest)


def _version(_: list[Kind], rest: list[str]) -> Json:
    if rest:
        raise no_such_path()
    return VERSION


def _api(kinds: list[Kind], rest: list[str]) -> Json:
    if rest:
        return resources(kinds, "", "/".join(rest))
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def _apis(kinds: list[Kind], rest: list[str]) -> Json:
    if not rest:
        return _groups(kinds)
    group, *versions = rest
    if versions:
        return resources(kinds, group, "/".join(versions))
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(kinds, group)


def _of_group(kinds: Iterable[Kind], group: str) -> list[Kind]:
    return [kind for kind in kinds if kind.group == group]


def _versions(kinds: Iterable[Kind]) -> list[str]:
    served = [each.name for kind in kinds for each in kind.versions if each.served]
    return list(dict.fromkeys(served))


def _group(kinds: Iterable[Kind], group: str) -> Json:
    versions = _versions(_of_group(kinds, group))
    if not versions:
        raise no_such_path()
    listed = [{"groupVersion": f"{group}/{each}", "version": each} for each in versions]
    return {"name": group, "versions": listed, "preferredVersion": listed[0]}


def _groups(kinds: Iterable[Kind]) -> Json:
    kinds = list(kinds)
    names = list(dict.fromkeys(kind.group for kind in kinds if kind.group))
    groups = [_group(kinds, name) for name in names]
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}


def resources(kinds: Iterable[Kind], group: str, version: str) -> Json:
    """/api/v1 or /apis/GROUP/VERSION. Errors: PlainTextError 404."""
    listed: list[Json] = []
    for kind in _of_group(kinds, group):
        described = kind.version(version)
        if described is None:
            continue
        listed.append(_resource(kind))
        if described.status:
            listed.append(
                {
                    "name": f"{kind.plural}/status",
                    "singularName": "",
                    "namespaced": kind.namespaced,
                    "kind": kind.kind,
                    "verbs": ["get", "patch", "update"],
                }
            )
    if not listed:
        raise no_such_path()
    api_version = f"{group}/{version}" if group else version
    head = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version}
    return head | {"resources": listed}


def _resource(kind: Kind) -> Json:
    said: Json = {
        "name": kind.plural,
        "singularName": kind.singular or kind.kind.lower(),
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": ["create"] if kind.virtual else list(VERBS),
    }
    said |= {"shortNames": list(kind.short)} if kind.short else {}
    return said | ({"categories": list(kind.categories)} if kind.categories else {})


def _openapi(kinds: list[Kind], rest: list[str]) -> Json:
    """The index, or for a group and version only which writes take `fieldValidation`."""
    if rest[:1] != ["v3"]:
        raise no_such_path()
    path = "/".join(rest[1:])
    by_path: dict[str, list[Kind]] = {}
    for kind in kinds:
        for version in _versions([kind]):
            root = f"apis/{kind.group}/{version}" if kind.group else f"api/{version}"
            by_path.setdefault(root, []).append(kind)
    if not path:
        where = {each: {"serverRelativeURL": f"/openapi/v3/{each}"} for each in by_path}
        return {"paths": where}
    if path not in by_path:
        raise no_such_path()
    version = path.rpartition("/")[2]
    paths = dict(_writable(kind, version, path) for kind in by_path[path])
    info = {"title": "Kubernetes", "version": VERSION["gitVersion"]}
    return {"openapi": "3.0.0", "info": info, "paths": paths, "components": {"schemas": {}}}


def _writable(kind: Kind, version: str, root: str) -> tuple[str, Json]:
    named = {"group": kind.group, "version": version, "kind": kind.kind}
    place = "namespaces/{namespace}/" if kind.namespaced else ""
    query = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
    ]
    operations = {
        method: {
            "operationId": f"{action}{kind.kind}",
            "parameters": query,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": named,
        }
        for method, action in WRITES.items()
    }
    return f"/{root}/{place}{kind.plural}/{{name}}", operations


ROOTS: Final[dict[str, Callable[[list[Kind], list[str]], Json]]] = {
    "version": _version,
    "api": _api,
    "apis": _apis,
    "openapi": _openapi,
}
