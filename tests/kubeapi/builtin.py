"""What built-in kinds default, refuse to decode (400) and find invalid (422).

Only as much of Kubernetes' own rules as the kinds under test can meet; fields that a built-in kind
does not have are kept, not dropped, because their schemas are not here.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

from tests.kubeapi.kinds import Kind
from tests.kubeapi.status import Cause, Undecodable

Json = dict[str, Any]
POD: Final[Json] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "priority": 0,
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
}
CONTAINER: Final[Json] = {
    "resources": {},
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
}
MICRO_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
MUTABLE_POD_SPEC: Final = (
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "tolerations",
)
POD_SAID: Final = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions"
    " to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it"
    " was previously negative)"
)
_addresses = count(1)


def _container(said: Json) -> Json:
    filled = CONTAINER | {"imagePullPolicy": _pull_policy(said.get("image", ""))} | said
    ports = [{"protocol": "TCP"} | port for port in said.get("ports", [])]
    return filled | ({"ports": ports} if ports else {})


def _pull_policy(image: str) -> str:
    tag = image.rpartition("/")[2]
    return "Always" if ":" not in tag or tag.endswith(":latest") else "IfNotPresent"


def _pod(value: Json) -> Json:
    spec = POD | value.get("spec", {})
    for part in ("containers", "initContainers"):
        if isinstance(spec.get(part), list):
            spec[part] = [_container(each) for each in spec[part]]
    return value | {"spec": spec}


def _service(value: Json) -> Json:
    spec = {"type": "ClusterIP", "sessionAffinity": "None"} | value.get("spec", {})
    if "clusterIP" not in spec and spec["type"] != "ExternalName":
        number = next(_addresses)
        spec["clusterIP"] = f"10.96.{number // 254 % 254}.{number % 254 + 1}"
        spec["clusterIPs"] = [spec["clusterIP"]]
    spec["ports"] = [
        {"protocol": "TCP", "targetPort": port.get("port")} | port for port in spec.get("ports", [])
    ]
    return value | {"spec": spec}


def _secret(value: Json) -> Json:
    filled = {"type": "Opaque"} | {k: v for k, v in value.items() if k != "stringData"}
    plain = value.get("stringData") or {}
    coded = {key: base64.b64encode(text.encode()).decode() for key, text in plain.items()}
    data = (value.get("data") or {}) | coded
    return filled | ({"data": data} if data else {})


def _namespace(value: Json) -> Json:
    metadata = value["metadata"]
    labels = (metadata.get("labels") or {}) | {"kubernetes.io/metadata.name": metadata.get("name")}
    return value | {
        "metadata": metadata | {"labels": labels},
        "spec": {"finalizers": ["kubernetes"]} | value.get("spec", {}),
    }


DEFAULTS: Final[dict[str, Callable[[Json], Json]]] = {
    "Pod": _pod,
    "Service": _service,
    "Secret": _secret,
    "Namespace": _namespace,
}
FIRST_STATUS: Final[dict[str, Json]] = {
    "Pod": {"phase": "Pending", "qosClass": "BestEffort"},
    "Namespace": {"phase": "Active"},
    "Service": {"loadBalancer": {}},
}
STRING_MAPS: Final = {
    "ConfigMap": ("data", "binaryData"),
    "Secret": ("data", "stringData"),
    "Pod": ("spec.nodeSelector",),
    "Service": ("spec.selector",),
}


def _at(value: Json, path: str) -> Any:
    found: Any = value
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def decode(kind: Kind, value: Json) -> None:
    """Refuse what Go's types could not hold. Errors: ApiError 400."""
    for path in ("metadata.labels", "metadata.annotations", *STRING_MAPS.get(kind.kind, ())):
        found = _at(value, path)
        if found is None:
            continue
        if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
            raise undecodable(kind, value, f"json: cannot unmarshal into Go struct field .{path}")
    if kind.kind == "Secret":
        _base64(kind, value)
    if kind.kind == "Lease":
        _micro_times(kind, value)


def undecodable(kind: Kind, value: Json, why: str) -> Undecodable:
    version = str(value.get("apiVersion", "")).rpartition("/")[2]
    return Undecodable(kind.kind, version, why)


def _base64(kind: Kind, value: Json) -> None:
    for text in (value.get("data") or {}).values():
        try:
            base64.b64decode(text, validate=True)
        except binascii.Error:
            raise undecodable(kind, value, "illegal base64 data at input byte 0") from None


def _micro_times(kind: Kind, value: Json) -> None:
    """MicroTime takes six decimals and no other number of them."""
    for field in ("acquireTime", "renewTime"):
        text = _at(value, f"spec.{field}")
        if text is not None and not MICRO_TIME.fullmatch(str(text)):
            form = "2006-01-02T15:04:05.000000Z07:00"
            said = f'parsing time "{text}" as "{form}": cannot parse "{text}" as ".000000"'
            raise undecodable(kind, value, said)


def _required(field: str) -> Cause:
    return Cause("FieldValueRequired", "Required value", field)


def _pod_breaches(value: Json, old: Json | None) -> Iterator[Cause]:
    containers = value.get("spec", {}).get("containers") or []
    if not containers:
        yield _required("spec.containers")
    for index, each in enumerate(containers):
        for field in ("name", "image"):
            if not each.get(field):
                yield _required(f"spec.containers[{index}].{field}")
    if old is not None and _fixed(old["spec"]) != _fixed(value["spec"]):
        yield Cause("FieldValueForbidden", POD_SAID, "spec")


def _fixed(spec: Json) -> Json:
    """The part of a Pod's spec that no update may change."""
    kept = {name: part for name, part in spec.items() if name not in MUTABLE_POD_SPEC}
    for part in ("containers", "initContainers"):
        if part in kept:
            kept[part] = [
                {k: v for k, v in each.items() if k not in ("image", "imagePullPolicy")}
                for each in kept[part]
            ]
    return kept


def _lease_breaches(value: Json, _: Json | None) -> Iterator[Cause]:
    spec = value.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        said = f"Invalid value: {seconds}: must be greater than 0"
        yield Cause("FieldValueInvalid", said, "spec.leaseDurationSeconds")
    if transitions is not None and transitions < 0:
        said = f"Invalid value: {transitions}: must be greater than or equal to 0"
        yield Cause("FieldValueInvalid", said, "spec.leaseTransitions")


def _event_breaches(value: Json, _: Json | None) -> Iterator[Cause]:
    namespace = value["metadata"].get("namespace", "")
    about = (value.get("involvedObject") or {}).get("namespace", "")
    if about != namespace and not (about == "" and namespace == "default"):
        said = f'Invalid value: "{about}": does not match event.namespace'
        yield Cause("FieldValueInvalid", said, "involvedObject.namespace")


def _service_breaches(value: Json, _: Json | None) -> Iterator[Cause]:
    spec = value["spec"]
    if not spec["ports"] and spec["type"] != "ExternalName" and spec.get("clusterIP") != "None":
        yield _required("spec.ports")


def _crd_breaches(value: Json, _: Json | None) -> Iterator[Cause]:
    spec, name = value.get("spec", {}), value["metadata"].get("name", "")
    if name != f"{spec.get('names', {}).get('plural')}.{spec.get('group')}":
        said = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        yield Cause("FieldValueInvalid", said, "metadata.name")
    if sum(bool(each.get("storage")) for each in spec.get("versions", [])) != 1:
        said = "Invalid value: must have exactly one version marked as storage version"
        yield Cause("FieldValueInvalid", said, "spec.versions")


BREACHES: Final[dict[str, Callable[[Json, Json | None], Iterator[Cause]]]] = {
    "Pod": _pod_breaches,
    "Lease": _lease_breaches,
    "Event": _event_breaches,
    "Service": _service_breaches,
    "CustomResourceDefinition": _crd_breaches,
}
