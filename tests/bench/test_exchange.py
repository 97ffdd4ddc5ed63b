"""What a request costs in instructions: what is played, how it is counted, what fails."""

import asyncio
import os
import re
import subprocess
import sys

import msgspec
import pytest

from bench.exchange import callgrind
from bench.exchange.counts import KEPT, Kept, cheaper, exceeded, least
from bench.exchange.parts import NAMES, REST, cost_of
from bench.exchange.plan import CHUNKS, SIZES, play
from bench.exchange.play import Took
from bench.exchange.tape import Connection, Requests, overlapping
from bench.exchange.trees import ROOT, prepare
from bench.exchange.virtual_loop import Clock, VirtualTransport, virtual_loop
from bench.extproc.reply import PromptCache
from bench.extproc.workload import Shape
from epp.adapters.extproc.limits import PeerLimits
from epp.adapters.extproc.transports import native_fault
from epp.protocol.extproc.codec import decode
from epp.protocol.extproc.messages import RequestBody, RequestHeaders, ResponseBody, ResponseHeaders
from epp.protocol.extproc.names import METHOD, SERVICE

native = pytest.mark.skipif(native_fault() != "", reason="the native transport is not built")


@native
@pytest.mark.parametrize(("size", "chunks"), [(2 << 10, 0), (20 << 10, 3), (220 << 10, 0)])
def test_what_is_played_is_http2_with_whole_messages(size, chunks):
    from epp.adapters.extproc.http2 import session  # noqa: PLC0415 (it has no source to fall back to)

    connection = Connection()
    source = Requests(connection, Shape(size=size, chunks=chunks), [PromptCache()])
    limits = PeerLimits()
    peer = session.Session(
        max_streams=limits.max_streams,
        stream_window=limits.stream_window,
        max_header_bytes=limits.max_header_bytes,
        max_message_bytes=limits.max_message_bytes,
        max_queued=limits.max_queued,
    )
    messages: dict[int, list[object]] = {}
    ended = []
    for read in (connection.preface(), *overlapping(source, 3)):
        for stream, event, value in peer.receive(read.data):
            if event == session.MESSAGE:
                messages.setdefault(stream.id, []).append(decode(value))
            elif event == session.ENDED:
                ended.append(stream.id)
            assert (stream.method, stream.content_type) == (b"POST", b"application/grpc")
            assert stream.path == f"/{SERVICE}/{METHOD}".encode()
        peer.take(1 << 20)
    assert ended == [1, 3, 5] == list(messages)
    for each in messages.values():
        assert [type(message) for message in each] == [
            RequestHeaders,
            *-(-size // (64 << 10)) * [RequestBody],
            ResponseHeaders,
            *max(chunks, 1) * [ResponseBody],
        ]
        sent = b"".join(message.body for message in each if isinstance(message, RequestBody))
        assert len(sent) == size
        assert msgspec.json.decode(sent)["stream"] is bool(chunks)


def test_time_passes_as_it_is_told_and_timers_run_in_order():
    clock, seen = Clock(10.0), []
    loop = virtual_loop(clock, b"")
    asyncio.events._set_running_loop(loop)
    try:

        async def sleeper(seconds):
            await asyncio.sleep(seconds)
            seen.append((seconds, clock.now))

        tasks = [loop.create_task(sleeper(each)) for each in (0.3, 0.1, 5.0)]
        loop.run_for(1.0)
        assert seen == [(0.1, 10.1), (0.3, 10.3)]
        assert [each.done() for each in tasks] == [True, True, False]
        loop.run_for(9.0)
        assert seen[-1] == (5.0, 15.0)
        assert clock.now == 20.0
    finally:
        asyncio.events._set_running_loop(None)


def test_who_connects_is_answered_with_the_page():
    clock, got = Clock(0.0), []
    loop = virtual_loop(clock, b"page")

    class Reader(asyncio.Protocol):
        def data_received(self, data):
            got.append((clock.now, data))

    async def ask():
        transport, _ = await loop.create_connection(Reader, "10.0.0.1", 80)
        transport.write(b"GET / HTTP/1.1\r\n\r\n")

    loop.create_task(ask())
    loop.run_for(1.0)
    assert [data for _, data in got] == [b"page"]
    assert VirtualTransport().is_closing() is False


CALLGRIND = """\
version: 1
positions: line
events: Ir
summary: 1000

fn=(1) loop
0 100
cfn=(2) CPyDef_exchange___Exchange___receive
calls=2 0
0 600
cfn=(3) malloc
calls=5 0
0 50
fn=(2)
0 200
cfn=(4) CPyDef_scheduler___Scheduler___route
calls=2 0
0 300
cfn=(3)
calls=1 0
0 10
fn=(4)
0 250
cfn=(5) CPyDef_fleet___Fleet____admitted
calls=2 0
0 40
"""


def test_a_part_costs_what_it_calls_less_the_parts_within():
    counts = callgrind.parsed(CALLGRIND.splitlines(keepends=True))
    assert counts.instructions == 1000
    assert counts.inclusive["malloc"] == 60
    assert counts.calls["malloc"] == 6
    cost = cost_of(counts, 2)
    assert cost.instructions == 500
    assert cost.allocations == 3
    found = {name: spent for name, spent in cost.parts.items() if spent}
    assert found == {"exchange": 150, "decide": 130, "commit": 20, REST: 200}
    assert sum(cost.parts.values()) == cost.instructions


def kept(instructions, **parts):
    return Kept(built_with="x", instructions={"a": instructions}, parts={"a": parts})


def test_more_than_is_kept_fails_and_says_which_part_has_grown():
    was = kept(1000, decide=400, end=600)
    assert not list(exceeded(was, kept(1010, decide=410, end=600)))
    said = list(exceeded(was, kept(1011, decide=420, end=591)))
    assert said[0].startswith("a: 1,011 instructions, 1,000 are kept")
    assert [line.strip() for line in said[1:]] == ["decide: +20"]
    assert cheaper(was, kept(985)) == ["a"]
    assert not cheaper(was, kept(995))


def test_of_two_counts_the_smaller_of_each_figure_is_held():
    def two(a, b):
        parts = {"a": {"decide": a}, "b": {"decide": b}}
        return Kept(built_with="x", instructions={"a": a, "b": b}, parts=parts)

    assert least(two(1000, 2400), two(1400, 2000)) == two(1000, 2000)


@native
def test_the_architecture_page_says_what_a_request_costs():
    parts = msgspec.json.decode(KEPT.read_bytes(), type=Kept).parts["json_2k"]
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = page.split("| part | thousand instructions |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| ([^|]+) \| (\d+) \|", table, re.MULTILINE)
    found = [name for row, _ in rows for name in (*NAMES, REST) if name in row]
    assert sorted(found) == sorted((*NAMES, REST))
    for row, thousands in rows:
        assert round(sum(parts[name] for name in parts if name in row) / 1000) == int(thousands)


@native
def test_the_picker_answers_all_that_is_played(tmp_path):
    tree = prepare(ROOT, tmp_path / "tree")
    command = [sys.executable, "-m", "bench.exchange.player"]
    runs = []
    for number in range(2):
        (tmp_path / "play").write_bytes(msgspec.msgpack.encode(play(tmp_path, 4, classes=number)))
        saw = tmp_path / f"took-{number}"
        subprocess.run(
            [*command, str(tmp_path / "play"), str(saw)],
            cwd=tree,
            env={"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"},
            check=True,
            capture_output=True,
        )
        runs.append(msgspec.json.decode(saw.read_bytes(), type=list[Took]))
    sent = [{each.name: each.sent for each in run} for run in runs]
    assert sent[0] == sent[1]
    for kind, chunks in CHUNKS.items():
        for size, length in SIZES.items():
            # The body comes back, as do at least the headers of five messages.
            each = sent[0][f"{kind}_{size}"] / max(1, 4 if length < (64 << 10) else 1)
            assert each > length + 100 * max(1, chunks)
    assert sent[0]["idle_10"] == 0


def test_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert callgrind.fault().startswith("valgrind and setarch not found")
    (tmp_path / "setarch").touch(mode=0o755)
    assert callgrind.fault().startswith("valgrind not found")


def test_files_between_marks_come_in_the_order_of_their_numbers(tmp_path):
    out = tmp_path / "callgrind"
    for end in ("", ".10", ".2", ".1"):
        out.with_name(f"{out.name}{end}").touch()
    assert [path.suffix for path in callgrind.between_marks(out)] == [".1", ".2", ".10"]


def test_a_picker_that_is_not_compiled_is_not_played():
    done = subprocess.run(
        [sys.executable, "-m", "bench", "exchange", "--quick"],
        cwd=ROOT,
        env=os.environ | {"WARMPICK_NATIVE": "off"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bench: nothing can be counted: ")
