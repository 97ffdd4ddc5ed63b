"""A request as the API server understands it (`request.RequestInfo`): verb, resource, place."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch"}
OF_NAMESPACE: Final = ("status", "finalize")  # subresources; everything else lies in the namespace


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. A path without a resource has an empty `version` and its method as verb."""

    method: str
    path: str
    query: dict[str, str] = {}
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    user: str = ""

    @property
    def is_resource(self) -> bool:
        return bool(self.resource)

    @property
    def address(self) -> str:
        """The resource as RBAC names it: `pods/status`."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def is_true(query: Mapping[str, str], name: str) -> bool:
    """A boolean parameter as Go's conversion reads it: only absent, 0 and false are false."""
    return name in query and query[name].lower() not in ("0", "false")


def parse(method: str, path: str, query: dict[str, str]) -> Ask:
    """Read a request line."""
    root, *parts = path.strip("/").split("/")
    group = ""
    if root == "apis" and parts:
        group = parts.pop(0)
    if root not in ("api", "apis") or len(parts) < 2:
        return Ask(method=method, path=path, query=query, verb=method.lower())
    version, *parts = parts
    namespace = ""
    if parts[0] == "namespaces" and len(parts) > 1:
        namespace = parts[1]
        if len(parts) > 2 and parts[2] not in OF_NAMESPACE:
            parts = parts[2:]
    resource, name, subresource = [*parts, "", ""][:3]
    return Ask(
        method=method,
        path=path,
        query=query,
        verb=_verb(method, name, query),
        group=group,
        version=version,
        namespace=namespace,
        resource=resource,
        name=name or _named(query),
        subresource="/".join([subresource, *parts[3:]]),
    )


def _verb(method: str, name: str, query: dict[str, str]) -> str:
    if method == "DELETE":
        return "delete" if name else "deletecollection"
    if method not in ("GET", "HEAD"):
        return VERBS.get(method, method.lower())
    if is_true(query, "watch"):
        return "watch"
    return "get" if name else "list"


def _named(query: dict[str, str]) -> str:
    """A list of one object by name is authorized by that name."""
    found = re.fullmatch(r"metadata\.name==?([^,]+)", query.get("fieldSelector", ""))
    return found.group(1) if found else ""
