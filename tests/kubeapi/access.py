"""Authentication and authorization: bearer tokens, client certificates, rules in RBAC's form, and
the reviews that answer questions about both.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from tests.kubeapi.request import Ask
from tests.kubeapi.status import GroupResource, forbidden, forbidden_path, unauthorized

Json = dict[str, Any]
ADMINS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"


class Identity(msgspec.Struct, frozen=True):
    """A user as the API server knows them."""

    name: str
    groups: tuple[str, ...] = (AUTHENTICATED,)
    uid: str = ""


ANONYMOUS: Final = Identity("system:anonymous", ("system:unauthenticated",))


class Rule(msgspec.Struct, frozen=True):
    """One rule of a Role. `namespace` None: everywhere (a ClusterRole bound to the cluster)."""

    api_groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    resource_names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    namespace: str | None = None


def rules_of(said: Iterable[Json], namespace: str | None = None) -> list[Rule]:
    """The `rules` of a Role (with its namespace) or of a ClusterRole (None) as Rules."""
    return [
        Rule(
            tuple(rule.get("apiGroups", ())),
            tuple(rule.get("resources", ())),
            tuple(rule.get("verbs", ())),
            tuple(rule.get("resourceNames", ())),
            tuple(rule.get("nonResourceURLs", ())),
            namespace,
        )
        for rule in said
    ]


def _covers(offered: tuple[str, ...], wanted: str) -> bool:
    return "*" in offered or wanted in offered


def _reaches(urls: Iterable[str], path: str) -> bool:
    return any(path == url or (url.endswith("*") and path.startswith(url[:-1])) for url in urls)


def _permits(rule: Rule, ask: Ask) -> bool:
    if not _covers(rule.verbs, ask.verb):
        return False
    if not ask.is_resource:
        return rule.namespace is None and _reaches(rule.urls, ask.path)
    return (
        rule.namespace in (None, ask.namespace)
        and _covers(rule.api_groups, ask.group)
        and (_covers(rule.resources, ask.address) or f"*/{ask.subresource}" in rule.resources)
        and (not rule.resource_names or ask.name in rule.resource_names)
    )


class Access:
    """The tokens that are known and what their users may do."""

    def __init__(self) -> None:
        self.tokens: dict[str, Identity] = {}
        self.rules: dict[str, list[Rule]] = {}

    def identify(self, headers: Mapping[str, str], certificate: Json | None) -> Identity:
        """Who sends a request, or whom they speak for.

        Errors: ApiError 401 for a token that is not known, 403 for speaking for others without
        being an administrator.
        """
        who = self._sender(headers, certificate)
        other = headers.get("Impersonate-User")
        if other is None:
            return who
        ask = Ask(method="", path="", verb="impersonate", resource="users", name=other)
        self.authorize(who, ask)
        return Identity(other)

    def _sender(self, headers: Mapping[str, str], certificate: Json | None) -> Identity:
        scheme, _, token = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and token:
            if token.strip() not in self.tokens:
                raise unauthorized()
            return self.tokens[token.strip()]
        if scheme:
            raise unauthorized()
        return _certified(certificate) if certificate else ANONYMOUS

    def allows(self, who: Identity, ask: Ask) -> bool:
        if ADMINS in who.groups:
            return True
        return any(_permits(rule, ask) for rule in self.rules.get(who.name, ()))

    def authorize(self, who: Identity, ask: Ask) -> None:
        """Errors: ApiError 403, which names verb, resource, group and place."""
        if self.allows(who, ask):
            return
        if not ask.is_resource:
            raise forbidden_path(who.name, ask.verb, ask.path)
        where = f'in the namespace "{ask.namespace}"' if ask.namespace else "at the cluster scope"
        raise forbidden(
            GroupResource(ask.group, ask.resource),
            ask.name,
            f'User "{who.name}" cannot {ask.verb} resource "{ask.address}" in API group'
            f' "{ask.group}" {where}',
        )

    def review_token(self, body: Json) -> Json:
        """The answer to a TokenReview."""
        found = self.tokens.get((body.get("spec") or {}).get("token", ""))
        if found is None:
            return body | {"status": {"user": {}, "error": "[invalid bearer token]"}}
        user = {"username": found.name, "uid": found.uid, "groups": list(found.groups)}
        kept = {name: part for name, part in user.items() if part}
        return body | {"status": {"authenticated": True, "user": kept}}

    def review_access(self, body: Json) -> Json:
        """The answer to a SubjectAccessReview."""
        spec = body.get("spec") or {}
        who = Identity(spec.get("user", ""), tuple(spec.get("groups", ())))
        if not self.allows(who, _asked(spec)):
            return body | {"status": {"allowed": False}}
        return body | {"status": {"allowed": True, "reason": "RBAC: allowed"}}


def _asked(spec: Json) -> Ask:
    path = spec.get("nonResourceAttributes")
    if path is not None:
        return Ask(method="", path=path.get("path", ""), verb=path.get("verb", ""))
    said = spec.get("resourceAttributes") or {}
    names = ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    return Ask(method="", path="", **{name: said.get(name, "") for name in names})


def _certified(certificate: Json) -> Identity:
    """CN is the user, every O a group."""
    parts = [pair for entry in certificate["subject"] for pair in entry]
    name = next(value for key, value in parts if key == "commonName")
    groups = tuple(value for key, value in parts if key == "organizationName")
    return Identity(name, (*groups, AUTHENTICATED))
