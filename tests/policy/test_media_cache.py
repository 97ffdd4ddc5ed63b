"""The producer of encoded media: what was sent to an endpoint is expected to be encoded there."""

import json

import pytest

from epp.config.file import load
from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved
from epp.model.request import Api, InferenceRequest, RequestId
from epp.policy.producers.media_cache import MediaCacheProducer, MediaCaches
from epp.protocol.bodies.request_json import parse_request
from tests.model.rig import Rig
from tests.policy.started import Context
from tests.strategies import candidate, endpoint


def asking(*pictures, text="What is this?"):
    """A chat about pictures, as the body's parser reads it."""
    parts = [{"type": "text", "text": text}]
    parts += [{"type": "image_url", "image_url": {"url": f"http://x/{name}"}} for name in pictures]
    body = {"model": "m", "messages": [{"role": "user", "content": parts}]}
    parsed = parse_request(Api.CHAT, json.dumps(body).encode())
    return InferenceRequest(id=RequestId("r"), prompts=parsed.prompts, multimodal=parsed.multimodal)


def started(mebibytes=4096):
    rig = Rig(0)
    caches = MediaCacheProducer(mebibytes).start(Context(fleet=rig.fleet))
    assert isinstance(caches, MediaCaches)
    for number in range(2):
        rig.add(f"pod-{number}", f"10.0.0.{number + 1}")
    return rig, caches


def matches(caches, *pictures, **more):
    asked = [candidate("pod-0"), candidate("pod-1")]
    found = caches.multimodal_matches(asking(*pictures, **more), asked)
    return [(each.matched, each.total) for each in found]


def sent(caches, *pictures, to=("pod-0",)):
    there = tuple(endpoint(name) for name in to)
    caches.committed(asking(*pictures), Decision(endpoints=there), 0.0)


def test_what_was_sent_matches_whatever_stands_around_it():
    _, caches = started()
    sent(caches, "a", "b")
    assert matches(caches, "a", "c") == [(1, 2), (0, 2)]
    assert matches(caches, "b", "a", text="Tell me more " * 99) == [(2, 2), (0, 2)]
    assert matches(caches) == [(0, 0), (0, 0)]


def test_all_endpoints_of_a_decision_have_it():
    _, caches = started()
    sent(caches, "a", to=("pod-0", "pod-1", "unknown"))
    assert matches(caches, "a") == [(1, 1), (1, 1)]


def test_the_least_recently_sent_is_dropped():
    _, caches = started(4)  # two items of 2 MiB
    for picture in "aba":
        sent(caches, picture)
    sent(caches, "c")
    assert [matches(caches, picture)[0][0] for picture in "abc"] == [1, 0, 1]


def test_an_endpoint_that_left_has_nothing():
    rig, caches = started()
    sent(caches, "a")
    rig.apply(EndpointRemoved(EndpointId("default/pod-0")))
    rig.add("pod-0", "10.0.0.9")
    assert matches(caches, "a") == [(0, 1), (0, 1)]


@pytest.mark.parametrize("size", [0, -1])
def test_no_size_is_the_default(size):
    assert started(size)[1]._items == 2048


def test_text_has_no_media():
    request = asking(text="ab" * 5000)
    assert not request.multimodal
    _, caches = started()
    assert [each.total for each in caches.multimodal_matches(request, [candidate("pod-0")])] == [0]


def test_it_is_configured_by_its_name():
    settings = load("""
plugins:
- {type: mm-embeddings-cache-producer, parameters: {cacheSizeInMBPerServer: 8}}
""")
    (observer,) = settings.scheduling.commit_observers
    assert isinstance(observer, MediaCaches)
