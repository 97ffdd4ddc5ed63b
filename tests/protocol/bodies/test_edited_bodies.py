"""What is written into a body is what the server reads, and nothing else of it changes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp._pb import engine_api_pb2 as pb
from epp.model.request import Api
from epp.protocol.bodies.body import Body
from epp.protocol.bodies.body_reader import BodyReader
from epp.protocol.bodies.grpc_body import framed
from epp.protocol.bodies.json_tokens import LOOKED_AT, members
from epp.protocol.bodies.model_rewrite import ModelRestorer, replace_model
from tests.native.built import loaded, needs
from tests.protocol.bodies.odd_bodies import (
    ANSWERS,
    NAME,
    PRIORITY,
    edited,
    members_of,
    requests,
    restored,
)
from tests.protocol.bodies.test_body import arriving, cut

_NAME = "epp.protocol.bodies.body_reader"
KINDS = [each.BodyReader for each in loaded(_NAME)]
READERS = pytest.mark.parametrize("reader", KINDS, ids=lambda kind: kind.__module__)
needs_reader = needs(_NAME, "the compiled reader of bodies")
PLACES = st.lists(st.integers(0, 1 << 12), max_size=6)
CHANGES = st.sampled_from(
    [{"model": NAME}, {"priority": PRIORITY}, {"model": NAME, "priority": PRIORITY}]
)


def written(api, reader, pieces, change):
    body = Body(api, reader)
    for piece in pieces:
        body.feed(piece)
    body.parse()
    return b"".join(body.rewritten(change.get("model", ""), change.get("priority")))


@READERS
@given(requests(), PLACES, CHANGES)
def test_what_is_written_is_read(reader, data, places, change):
    got = written(Api.COMPLETIONS, reader, arriving(data, places), change)
    assert json.loads(got) == json.loads(data) | change
    assert got == edited(data, change)


@READERS
@given(requests(needed=()), CHANGES)
def test_a_body_that_needs_nothing_may_have_no_member(reader, data, change):
    got = written(Api.RAW_PREDICT, reader, [data], change)
    assert json.loads(got) == json.loads(data) | change
    assert got == edited(data, change)


@given(requests(), PLACES, CHANGES)
def test_in_a_frame_too(data, places, change):
    message = pb.Predict(http_body=pb.HttpBody(data=data)).SerializeToString()
    got = written(Api.VERTEX_RAW, KINDS[0], arriving(framed(message), places), change)
    assert pb.Predict.FromString(got[5:]).http_body.data == edited(data, change)


LONG = [
    b'{"\\u006dodel":"m","prompt":"%s","priority":"-100"}' % (b'\\"' * LOOKED_AT),
    b'{"model":"m","prompt":"a","\\u0061":[%s{}],"priority":"-100"}' % (b"{}," * 100_000),
    b'{"model":"m","\\u0061":[%s{}],"prompt":"a"} \n ' % (b"{}," * 100_000),
    b'{"model":"m","prompt":%s"a"%s,"x":{"model":1}} ' % (b"[" * 200, b"]" * 200),
]


@READERS
@pytest.mark.parametrize("data", LONG, ids=range(len(LONG)))
def test_what_is_not_found_in_a_long_body_is_put_behind_it(reader, data):
    change = {"model": NAME, "priority": PRIORITY}
    api = Api.COMPLETIONS_RENDER
    got = written(api, reader, arriving(data, range(0, len(data), 1 << 16)), change)
    assert json.loads(got) == json.loads(data) | change
    end = len(data.rstrip()) - 1
    added = f',"model":{json.dumps(NAME)},"priority":{PRIORITY}'.encode()
    assert got in (edited(data, change), data[:end] + added + data[end:])


@needs_reader
@pytest.mark.parametrize("data", LONG[:3], ids=range(3))
def test_the_compiled_reader_finds_it_in_any(data):
    change = {"model": NAME, "priority": PRIORITY}
    got = written(Api.COMPLETIONS, BodyReader, arriving(data, range(0, len(data), 1 << 16)), change)
    assert got == edited(data, change)


@given(ANSWERS, PLACES)
def test_an_answer_gets_the_name_in_its_place(data, places):
    assert replace_model(data, NAME) == restored(data, NAME)
    restorer = ModelRestorer(NAME, sse=False)
    passed = [restorer.feed(piece, last=False) for piece in cut(data, places)]
    assert b"".join([*passed, restorer.feed(b"", last=True)]) == restored(data, NAME, 1)


@given(requests())
def test_the_last_of_members_are_found_where_the_parser_finds_them(data):
    text = data.decode()
    start, end = text.index("{"), len(text.rstrip())
    found = dict(members(text.encode(), {(), (b"model",), (b"priority",)}))
    assert found.pop(()) == (len(text[:start].encode()), len(text[:end].encode()))
    if text.isascii():
        last = {key: span for key, *span in members_of(text, start)}
        known = {path[0].decode(): list(span) for path, span in found.items()}
        assert known == {key: last[key] for key in ("model", "priority") if key in last}


@given(st.binary(max_size=80) | st.text(alphabet='{}[]":,\\ amodel', max_size=80).map(str.encode))
def test_noise_raises_nothing(data):
    wanted = {(), (b"model",), (b"a", b"model")}
    assert all(0 <= start < end <= len(data) for _, (start, end) in members(data, wanted))
