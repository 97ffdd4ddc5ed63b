import itertools
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol.kube.objects import InferenceObjective, KubePod
from epp.protocol.kube.watch import (
    ApiRefused,
    LineSplitter,
    ObjectDecoder,
    StreamBroken,
    Unreadable,
    WatchEvent,
    read_status,
)
from tests.protocol.kube.objects import objective, pod

EXPIRED = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "too old resource version: 1 (90)",
    "reason": "Expired",
    "code": 410,
}


def line(kind, document):
    return json.dumps({"type": kind, "object": document}).encode()


def listed(*items, **metadata):
    return json.dumps({"kind": "List", "metadata": metadata, "items": items}).encode()


def test_events_and_bookmarks_are_read():
    reader = ObjectDecoder(KubePod)
    added = reader.event(line("ADDED", pod("a")))
    assert isinstance(added, WatchEvent)
    assert (added.type, added.object.metadata.name, added.object.ready) == ("ADDED", "a", True)
    version = {"metadata": {"resourceVersion": "12", "creationTimestamp": None}, "spec": {}}
    bookmark = reader.event(line("BOOKMARK", {"kind": "Pod", **version}))
    assert isinstance(bookmark, WatchEvent)
    assert (bookmark.type, bookmark.object.metadata.resource_version) == ("BOOKMARK", "12")


@pytest.mark.parametrize("kind", [KubePod, InferenceObjective])
@pytest.mark.parametrize(
    ("status", "expired"),
    [
        (EXPIRED, True),
        ({**EXPIRED, "reason": "Gone"}, True),
        ({"code": 500, "message": "etcd is away"}, False),
        ({**EXPIRED, "code": 504, "reason": "Timeout"}, False),
    ],
)
def test_an_error_event_is_a_refusal(kind, status, expired):
    with pytest.raises(ApiRefused, match=re.escape(status["message"])) as raised:
        ObjectDecoder(kind).event(line("ERROR", status))
    assert (raised.value.code, raised.value.expired) == (status["code"], expired)


@pytest.mark.parametrize(
    "broken", [b"{", b"\xff", b"[]", b"{}", b'{"type": 1}', b'{"type":"ERROR","object":[]}']
)
def test_a_malformed_event_breaks_the_stream(broken):
    with pytest.raises(StreamBroken, match="not an event"):
        ObjectDecoder(KubePod).event(broken)


def test_an_error_event_that_cannot_be_read_says_why():
    with pytest.raises(StreamBroken, match="Expected `int`"):
        ObjectDecoder(KubePod).event(b'{"type":"ERROR","object":{"code":"gone"}}')


def test_an_ill_typed_object_is_skipped():
    strange = objective("a", "high")
    reader = ObjectDecoder(InferenceObjective)
    event = reader.event(line("ADDED", strange))
    assert isinstance(event, Unreadable)
    assert (event.name, "priority" in event.why) == ("a", True)
    page = reader.page(listed(strange, objective("b", 1), resourceVersion="5"))
    assert [each.metadata.name for each in page.items] == ["b"]
    assert [each.name for each in page.unreadable] == ["a"]
    assert page.metadata.resource_version == "5"


def test_an_object_without_a_name_is_skipped():
    reader, nameless = ObjectDecoder(KubePod), pod("")
    assert isinstance(reader.event(line("ADDED", nameless)), Unreadable)
    page = reader.page(listed(nameless, pod("b")))
    assert [each.metadata.name for each in page.items] == ["b"]


def test_a_text_that_is_not_utf_8_costs_only_its_object():
    reader, strange = ObjectDecoder(KubePod), pod("a", ports="8000?")
    event = reader.event(line("MODIFIED", strange).replace(b"?", b"\xff"))
    assert isinstance(event, Unreadable)
    assert event.name == "a"
    page = reader.page(listed(strange, pod("b")).replace(b"?", b"\xff"))
    assert [each.metadata.name for each in page.items] == ["b"]
    assert [each.name for each in page.unreadable] == ["a"]


def test_pages_of_a_list_are_read():
    metadata = {"resourceVersion": "5", "continue": "abc", "remainingItemCount": 3}
    page = ObjectDecoder(KubePod).page(listed(pod("a"), pod("b"), **metadata))
    assert [each.metadata.name for each in page.items] == ["a", "b"]
    assert (page.metadata.continue_token, page.unreadable) == ("abc", ())


@pytest.mark.parametrize("items", [b"", b', "items": []', b', "items": null'])
def test_a_list_without_items_is_empty(items):
    page = ObjectDecoder(KubePod).page(b'{"metadata": {"resourceVersion": "7"}%s}' % items)
    assert (page.metadata.resource_version, page.items, page.unreadable) == ("7", (), ())


@pytest.mark.parametrize("broken", [b"", b"{", b"[]", b'{"metadata": 1}', b'{"items": []}'])
def test_a_malformed_list_breaks_the_stream(broken):
    with pytest.raises(StreamBroken, match="not a list"):
        ObjectDecoder(KubePod).page(broken)


def test_the_status_of_a_refusal_is_read_where_there_is_one():
    said = read_status(429, b'{"message":"slow down","code":1,"details":{"retryAfterSeconds":7}}')
    assert (said.code, said.message, said.details.retry_after_seconds) == (429, "slow down", 7)
    assert read_status(502, b"<html>bad gateway</html>").code == 502
    assert str(ApiRefused(read_status(502, b""))) == "HTTP status 502"


@given(st.lists(st.binary(max_size=9).filter(lambda text: b"\n" not in text)), st.data())
def test_lines_come_out_whole_however_the_stream_is_split(lines, data):
    stream = b"".join(each + b"\n" for each in lines) + b"half a line"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    edges = [0, *cuts, len(stream)]
    cutter = LineSplitter()
    got = [
        each for start, end in itertools.pairwise(edges) for each in cutter.feed(stream[start:end])
    ]
    assert got == [each for each in lines if each.strip()]


def test_a_line_without_end_breaks_the_stream():
    cutter = LineSplitter()
    for _ in range(8):
        assert list(cutter.feed(b"x" * (1 << 20))) == []
    with pytest.raises(StreamBroken, match="longer than"):
        list(cutter.feed(b"x"))
