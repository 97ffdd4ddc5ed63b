"""One object that cannot be read costs that object: every field of every kind, with odd values."""

import asyncio
import ipaddress
import json
import random
from typing import Any

import pytest

from epp.model.request import InferenceRequest, RequestId
from tests.adapters.kube.rig import CRDS, discovering, pod, watched
from tests.config.odd_parameters import paths, put
from tests.kubeapi import FakeKubernetes, faults
from tests.kubeapi.answers import Answer
from tests.protocol.kube import objects

MANY_DIGITS = "9" * 4301
NUMBER = "a number of many digits"
"""Stands for a number that `json` does not write."""
ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 8001, 2**31, 2**63, 2**70, 1e308, 0.5, NUMBER),
    *("", " ", "x", "-1", MANY_DIGITS, "٣", "8000,\0,-8000", "fe80::1%\r\nx: y", "x" * 100_000),
    *([], {}, [None], [[]], [{}], ["x"], {"": None}, {"x": {}}, {"x": NUMBER}),
)
RAW = (
    b"[" * 100_000,
    b'{"a":' * 100_000,
    MANY_DIGITS.encode(),
    b'"\xff"',
    b'"\xed\xa0\x80"',
    b"nul",
)
"""What is not JSON, or nearly none, in the place of an object."""


def everything(name):
    """Return one object of each kind, with every field that is read."""
    made = objects.pod(name, "10.0.0.9", ports="8000, 8001")
    made["status"]["hostIP"] = "10.1.0.1"
    made["spec"] = {"hostname": "h"}
    named = objects.pool("pool")
    named["spec"]["appProtocol"] = "http"
    selector = {
        "matchLabels": {"a": "b"},
        "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}],
    }
    refs = [{"name": "pool", "group": "inference.networking.k8s.io", "kind": "InferencePool"}]
    yield "pods", made
    yield "inferencepools", named
    yield "inferenceobjectives", objects.objective(name, 3)
    v1 = objects.objective_v1(name, 3, poolRefs=refs, poolSelector=selector)
    yield "inferenceobjectives", v1
    yield (
        "inferencemodelrewrites",
        objects.rewrite(name, (["m"], {"n": 1, "o": 2}), (None, {"p": None})),
    )


def without(value, path):
    """Return a value without what is at a path."""
    *above, last = path
    if not above:
        copy = dict(value) if isinstance(value, dict) else list(value)
        del copy[last]
        return copy
    return (
        {**value, path[0]: without(value[path[0]], path[1:])}
        if isinstance(value, dict)
        else ([without(each, path[1:]) if at == path[0] else each for at, each in enumerate(value)])
    )


def odd_objects(document):
    """Yield a document with each of its values replaced by each odd one, or left out.

    Each has a name of its own, where its name and what is around that is not what is odd.
    """
    number = 0
    for path in paths(document):
        made = [without(document, path), *(put(document, path, value) for value in ODD)]
        for each in made:
            number += 1
            named = path[0] != "metadata" or path[1:2] not in ((), ("name",))
            yield put(each, ("metadata", "name"), f"odd{number}") if named else each
    yield from ODD


def written(value):
    return json.dumps(value).replace(f'"{NUMBER}"', MANY_DIGITS).encode()


KINDS = [(resource, document) for resource, document in everything("odd")]


@pytest.fixture
async def api():
    async with FakeKubernetes(crds=CRDS) as made:
        made.put(objects.pool())
        made.put(pod("good", "10.0.0.1"))
        yield made


async def opened(api, resource, used):
    """Return a watch of a resource that is open and not about to end."""
    async with asyncio.timeout(10):
        while True:
            for stream in api.watches:
                if stream.ask.resource == resource and stream not in used:
                    used.append(stream)
                    return stream
            await asyncio.sleep(0.001)


async def settled(api, made, fleet, name, ip):
    """Wait until a change of a good pod has come through, and everything is sound."""
    api.put(pod(name, ip))
    await fleet.until(lambda: f"{ip}:8000" in fleet.targets and made.ready)
    for target in fleet.targets:
        address, _, port = target.rpartition(":")
        ipaddress.ip_address(address.strip("[]"))
        assert 1 <= int(port) <= 65_535
    chance = random.Random(0)  # noqa: S311 (chance, not secrets)
    for model in ("m", "n", "", "x"):
        asked = InferenceRequest(
            id=RequestId("r"), model=model, target_model=model, objective="odd"
        )
        made.routing.resolve(asked, chance.randrange)


@pytest.mark.parametrize(("resource", "document"), KINDS)
@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "NEW"])
async def test_odd_objects_in_a_watch(api, tmp_path, resource, document, kind):
    async with discovering(api, tmp_path) as (made, fleet):
        await fleet.until(lambda: made.ready)
        await watched(api, resource)
        for odd in odd_objects(document):
            for stream in api.watches:
                if stream.ask.resource == resource:
                    stream.say(b'{"type":"%s","object":%s}\n' % (kind.encode(), written(odd)))
        api.put(objects.pool(ports=(8000, 8001)))
        api.put(objects.pool())
        await settled(api, made, fleet, "late", "10.0.0.2")


@pytest.mark.parametrize(("resource", "document"), KINDS)
async def test_odd_objects_in_a_list(api, tmp_path, resource, document):
    good = dict(api.get("Pod", "good")) if resource == "pods" else None
    items = [*map(written, odd_objects(document))]
    items = [*items, written(good)] if good else items
    page = b'{"metadata":{"resourceVersion":"1"},"items":[%s]}' % b",".join(items)
    api.fail(faults.answering(Answer(body=page)), verb="list", resource=resource)
    async with discovering(api, tmp_path) as (made, fleet):
        if resource == "inferencepools":  # of that name all are the pool, the last of them counts
            api.put(objects.pool(ports=(8000, 8001)))
            api.put(objects.pool())
        await settled(api, made, fleet, "late", "10.0.0.2")


@pytest.mark.parametrize("raw", RAW)
@pytest.mark.parametrize("resource", ["pods", "inferencepools", "inferenceobjectives"])
async def test_what_is_no_json(api, tmp_path, raw, resource):
    bodies = (
        raw,
        b'{"metadata":%s,"items":[]}' % raw,
        b'{"metadata":{"resourceVersion":"1"},"items":%s}' % raw,
        b'{"metadata":{"resourceVersion":"1"},"items":[%s]}' % raw,
        b'{"metadata":{"resourceVersion":"1"},"items":[{"spec":%s}]}' % raw,
    )
    for body in bodies:
        api.fail(faults.answering(Answer(body=body)), verb="list", resource=resource)
    async with discovering(api, tmp_path) as (made, fleet):
        await fleet.until(lambda: made.ready)
        lines = (
            raw,
            b'{"type":%s,"object":{}}' % raw,
            b'{"type":"ADDED","object":%s}' % raw,
            b'{"type":"MODIFIED","object":{"metadata":{"name":"good","x":%s}}}' % raw,
            b'{"type":"ERROR","object":%s}' % raw,
            b'{"type":"ERROR","object":{"code":410,"details":{"retryAfterSeconds":%s}}}' % raw,
        )
        used: list[Any] = []
        for line in lines:
            stream = await opened(api, resource, used)
            stream.say(line + b"\n")
            stream.finish()
        await settled(api, made, fleet, "late", "10.0.0.2")
