"""A CustomResourceDefinition read as a Kind, and its own status."""

from typing import Any

from tests.kubeapi.kinds import BY_PLACE, Kind, Version
from tests.kubeapi.validation import has_rules

Json = dict[str, Any]


def kind_of(crd: Json) -> Kind:
    """What the API server serves for a definition.

    Errors: ValueError where a rule of its schema cannot be evaluated here.
    """
    spec = crd["spec"]
    names = spec["names"]
    for version in spec["versions"]:
        has_rules(version.get("schema", {}))
    selectable = [
        field["jsonPath"].lstrip(".")
        for version in spec["versions"]
        for field in version.get("selectableFields", [])
    ]
    return Kind(
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        group=spec["group"],
        short=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        namespaced=spec["scope"] == "Namespaced",
        custom=True,
        versions=tuple(_version(each) for each in spec["versions"]),
        storage=next(each["name"] for each in spec["versions"] if each["storage"]),
        unconditional=False,
        generation=True,
        fields=BY_PLACE | {path: path for path in selectable},
    )


def _version(said: Json) -> Version:
    return Version(
        name=said["name"],
        served=said["served"],
        status="status" in said.get("subresources", {}),
        schema=said.get("schema", {}).get("openAPIV3Schema", {}),
    )


def established(crd: Json, now: str) -> Json:
    """The definition with the status that the API server's controllers give it."""
    names = crd["spec"]["names"]
    accepted = names | {
        "singular": names.get("singular") or names["kind"].lower(),
        "listKind": names.get("listKind") or f"{names['kind']}List",
    }
    conditions = [
        {
            "type": "NamesAccepted",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "NoConflicts",
            "message": "no conflicts found",
        },
        {
            "type": "Established",
            "status": "True",
            "lastTransitionTime": now,
            "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        },
    ]
    stored = [each["name"] for each in crd["spec"]["versions"] if each["storage"]]
    status = {"conditions": conditions, "acceptedNames": accepted, "storedVersions": stored}
    return crd | {"spec": crd["spec"] | {"names": accepted}, "status": status}
