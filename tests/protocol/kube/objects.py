"""Kubernetes objects as their own API writes them, for tests."""

from typing import Any

import msgspec

from epp.protocol.kube.objects import (
    InferenceModelRewrite,
    InferenceObjective,
    InferencePool,
    KubePod,
    LegacyInferencePool,
)
from epp.protocol.kube.watch import ObjectDecoder, WatchEvent

_KINDS = {
    "Pod": KubePod,
    "InferenceObjective": InferenceObjective,
    "InferenceModelRewrite": InferenceModelRewrite,
}
_POOLS = {
    "inference.networking.k8s.io/v1": InferencePool,
    "inference.networking.x-k8s.io/v1alpha2": LegacyInferencePool,
}
LABELS = {"app": "vllm"}


def pod(name, ip="10.0.0.1", *, ready=True, ports=None, **more):
    """A pod as a document; `ports` is its active-ports annotation.

    `more` are `namespace`, `uid`, `going`, `created`, `labels`, and `annotation`, its key.
    """
    metadata = {
        "name": name,
        "namespace": more.get("namespace", "default"),
        "uid": more.get("uid", f"uid-{name}"),
        "creationTimestamp": more.get("created", "2026-01-01T00:00:00Z"),
        "labels": more.get("labels", LABELS),
    }
    if more.get("going"):
        metadata["deletionTimestamp"] = "2026-01-02T00:00:00Z"
    if ports is not None:
        metadata["annotations"] = {more.get("annotation", "llm-d.ai/active-ports"): ports}
    status = {
        "phase": "Running",
        "conditions": [
            {"type": "Initialized", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False"},
        ],
    }
    if ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


def pool(name="pool", ports=(8000,), labels=None):
    """An InferencePool as a document."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": labels or LABELS},
            "targetPorts": [{"number": port} for port in ports],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


def legacy_pool(name="pool", port=8000, labels=None):
    """An InferencePool of `v1alpha2` as a document."""
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha2",
        "kind": "InferencePool",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "selector": labels or LABELS,
            "targetPortNumber": port,
            "extensionRef": {"name": "epp"},
        },
    }


def objective_v1(name, priority, **targets):
    """An InferenceObjective of `v1` as a document; `targets` are poolRefs and poolSelector."""
    return {
        "apiVersion": "llm-d.ai/v1",
        "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"priority": priority, **targets},
    }


def objective(name, priority, *, group="llm-d.ai", ref=()):
    """An InferenceObjective as a document."""
    spec: dict[str, object] = {"poolRef": {"name": "pool", **dict(ref)}}
    if priority is not None:
        spec["priority"] = priority
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": name, "namespace": "default"},
        "spec": spec,
    }


def rewrite(name, *rules, created="2026-01-01T00:00:00Z", group="llm-d.ai", ref=()):
    """An InferenceModelRewrite as a document; a rule is (models or None, {target: weight})."""
    return {
        "apiVersion": f"{group}/v1alpha2",
        "kind": "InferenceModelRewrite",
        "metadata": {"name": name, "namespace": "default", "creationTimestamp": created},
        "spec": {
            "poolRef": {"name": "pool", **dict(ref)},
            "rules": [_rule(models, targets) for models, targets in rules],
        },
    }


def _rule(models, targets):
    rule = {
        "targets": [
            {"modelRewrite": model} | ({} if weight is None else {"weight": weight})
            for model, weight in targets.items()
        ]
    }
    if models is not None:
        rule["matches"] = [{"model": {"type": "Exact", "value": model}} for model in models]
    return rule


def read(document):
    """Read a document into the struct of its kind, through the bytes that the API would send."""
    line = msgspec.json.encode({"type": "ADDED", "object": document})
    kind: Any = _POOLS.get(document["apiVersion"]) or _KINDS[document["kind"]]
    event = ObjectDecoder(kind).event(line)
    assert isinstance(event, WatchEvent)
    return event.object
