"""Whether the API server would take an object: Kubernetes' schemas, and the CRDs'."""

import functools
import json
import os
from collections import Counter
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator, FormatChecker
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

ROOT = Path(__file__).parents[2]
KUBERNETES = ("1.30", "1.37")
"""The oldest version that the charts ask for, and the newest that the schemas at hand know."""
THIRD_PARTY = yaml.safe_load((Path(__file__).parent / "third_party.yaml").read_text())
_LABEL = {
    "type": "string",
    "maxLength": 63,
    "pattern": r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$",
}
_METADATA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {
            "type": "string",
            "maxLength": 253,
            "pattern": "^[a-z0-9]([-a-z0-9.:]*[a-z0-9])?$",
        },
        "labels": {"type": "object", "additionalProperties": _LABEL},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
"""What the API server asks of every object's metadata, and Kubernetes' schemas do not say."""
_OBJECT = {"apiVersion": {}, "kind": {}, "metadata": _METADATA}


def complaints(thing):
    """Everything that is wrong with an object, each with its place. Empty: it would be taken."""
    return _complaints(json.dumps(thing, sort_keys=True))


@functools.cache
def _complaints(text):
    thing = json.loads(text)
    wrong = [
        f"{'/'.join(map(str, error.absolute_path))}: {error.message}"
        for part, validator in _parts(thing)
        for error in validator.iter_errors(part)
    ]
    if not wrong and thing["kind"] in {"Deployment", "StatefulSet"}:
        wrong = _rules(thing["spec"]["template"]["spec"])
    return [f"{thing['kind']} {thing['metadata'].get('name')}: {each}" for each in wrong]


def _rules(pod):
    """What the API server asks of a pod and no schema says."""
    containers = pod["containers"] + pod.get("initContainers", [])
    lists = {"container": [each["name"] for each in containers]}
    lists["volume"] = [each["name"] for each in pod.get("volumes", ())]
    for each in containers:
        name = each["name"]
        lists[f"{name}'s mount"] = [way["mountPath"] for way in each.get("volumeMounts", ())]
        ports = [port["name"] for port in each.get("ports", ()) if "name" in port]
        lists[f"{name}'s port"] = ports
        lists[f"{name}'s variable"] = [said["name"] for said in each.get("env", ())]
    found = [
        f"{what} {name} is there {count} times"
        for what, names in lists.items()
        for name, count in Counter(names).items()
        if count > 1
    ]
    grace = pod.get("terminationGracePeriodSeconds", 30)
    for each in containers:
        pause = each.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 1)
        if not 0 < pause <= max(grace, 1):
            found.append(f"{each['name']} sleeps for {pause} of {grace} seconds")
    # Kubernetes, Pod: only init containers have a restart policy.
    restarted = [each["name"] for each in pod["containers"] if "restartPolicy" in each]
    return found + [f"{name} is not a sidecar container" for name in restarted]


def _parts(thing):
    """The object, and the pods within it that its own schema leaves open, each with a validator."""
    key = f"{thing['apiVersion']}/{thing['kind']}"
    yield thing, Draft202012Validator({"properties": {"metadata": _METADATA}})
    yield from ((thing, validator) for validator in _validators(key))
    group = thing.get("spec", {}).get("leaderWorkerTemplate", {})
    for name in {"leaderTemplate", "workerTemplate"} & group.keys():
        pod = {"apiVersion": "v1", "kind": "Pod"} | group[name]
        yield from ((pod, validator) for validator in _validators("v1/Pod"))


@functools.cache
def _validators(key):
    """Every validator that knows the kind; a kind that none knows is a mistake."""
    found = [_kubernetes(key, version) for version in KUBERNETES if key in _core()]
    if key in THIRD_PARTY:
        found.append(_third_party(key))
    found += [_custom(crds[key]) for crds in (_ours(), _upstream()) if key in crds]
    assert found, f"no schema for {key}"
    return found


@functools.cache
def _core():
    """What Kubernetes serves itself."""
    return {
        f"{api}/{kind}": f"{kind.lower()}-{api.split('.')[0].split('/')[0]}-{api.split('/')[-1]}"
        if "/" in api
        else f"{kind.lower()}-{api}"
        for api, kinds in {
            "v1": "ConfigMap Namespace PersistentVolumeClaim Pod Secret Service ServiceAccount",
            "apps/v1": "Deployment StatefulSet",
            "apiextensions.k8s.io/v1": "CustomResourceDefinition",
            "autoscaling/v2": "HorizontalPodAutoscaler",
            "networking.k8s.io/v1": "NetworkPolicy",
            "policy/v1": "PodDisruptionBudget",
            "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
        }.items()
        for kind in kinds.split()
    }


def _contents(name, version):
    return schema_contents(f"kubernetes-json-schema/v{version}.0-local-strict/{name}.json", version)


@functools.cache
def _definitions(version):
    contents = _contents("_definitions", version)
    resource = Resource.from_contents(contents, default_specification=DRAFT202012)
    # Crawled once here: else every validation crawls the whole of it.
    return Registry().with_resource("_definitions.json", resource).crawl()


def _kubernetes(key, version):
    return Draft202012Validator(
        _contents(_core()[key], version),
        registry=_definitions(version),
        format_checker=FormatChecker(),
    )


def _third_party(key):
    return Draft202012Validator(
        {
            "$defs": THIRD_PARTY["$defs"],
            "required": ["metadata", "spec"],
            "additionalProperties": False,
            "properties": _OBJECT | {"spec": THIRD_PARTY[key]},
        }
    )


@functools.cache
def _ours():
    return definitions(ROOT / "manifests" / "crds")


@functools.cache
def _upstream():
    folder = os.environ.get("WARMPICK_UPSTREAM_CRDS")
    return definitions(Path(folder)) if folder else {}


def definitions(folder):
    """Read the CRDs of a folder: {"group/version/Kind": schema of that version}."""
    return {
        f"{crd['spec']['group']}/{version['name']}/{crd['spec']['names']['kind']}": version[
            "schema"
        ]["openAPIV3Schema"]
        for crd in crds(folder)
        for version in crd["spec"]["versions"]
    }


def crds(folder):
    """Every CustomResourceDefinition in a folder's YAML files."""
    return [
        thing
        for path in sorted(folder.glob("*.yaml"))
        for thing in yaml.load_all(path.read_text(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if thing and thing.get("kind") == "CustomResourceDefinition"
    ]


def _custom(schema):
    closed = _closed(schema)
    closed["properties"] |= _OBJECT
    return Draft202012Validator(closed, format_checker=FormatChecker())


def _closed(schema):
    """The schema with unknown fields refused, where the API server would drop them in silence."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if (
        isinstance(schema.get("properties"), dict)
        and "additionalProperties" not in schema
        and not schema.get("x-kubernetes-preserve-unknown-fields")
        and schema.get("type") == "object"
    ):
        closed["additionalProperties"] = False
    return closed
