"""Whatever stands in a file, or is asked of a workload: it is played, left out or refused."""

import copy
import gzip
import io
import itertools
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
import zstandard
from msgspec.structs import replace

from epp.errors import ConfigError
from epp.protocol.recording import VERSION
from epp.replay.engines.contract import Limits
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.simulation import run
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import read_traffic
from epp.replay.traffic import bounds
from epp.replay.traffic.bounds import MAX_SECONDS, MAX_TOKENS
from epp.replay.traffic.calls import Call, Run, Trace, tokens_in
from epp.replay.traffic.copies import superposed
from epp.replay.traffic.files import source
from epp.replay.traffic.reading import WORKLOADS, read
from epp.replay.traffic.workloads.arrivals import Arrivals

PLAN = RunPlan(policy=NAMED["least-ttft"], pods=[PodPlan(limits=Limits(num_gpu_blocks=2000))] * 2)
VALUES = (
    *("-1", "-5", "0", "0.5", "3", "1000000", "1e12", "1e18", "1e300", "-1e300", "1e999"),
    *(str(2**31), str(2**63), str(2**70), "9" * 5000, "NaN", "Infinity", "-Infinity"),
    *('"text"', '"1e300"', '"NaN"', '"inf"', '"-7"', "null", "true", "[]", "{}", "[[1]]"),
)
HEADER = {
    "kind": "header",
    "version": VERSION,
    "salt": "5a",
    "part": 1,
    "started": "2026-11-22T20:00:00.000+00:00",
    "pool": "p",
}
PROMPT = {
    "number": 1,
    "size": 200,
    "tokens": 50,
    "like": 0,
    "shared": 0,
    "hashes": "AQAAAAAAAAA=",
    "lengths": [128],
    "rest": 5,
    "marks": [200],
}
RECORDED = {
    "kind": "request",
    "n": 1,
    "at": 1.0,
    "outcome": "completed",
    "model": "m",
    "stream": True,
    "priority": 0,
    "max_tokens": 9,
    "prompts": [PROMPT],
    "decided": 0.001,
    "first": 0.1,
    "end": 1.0,
    "chunks": 3,
    "status": 200,
    "prompt_tokens": 50,
    "cached_tokens": 0,
    "generated_tokens": 7,
}
BEGAN = {**RECORDED, "n": 9, "at": 0.0, "prompts": [{**PROMPT, "number": 9}]}
MOONCAKE = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}
LMCACHE = {"timestamp": 7, "input": "user: x\nuser: y", "output": "z", "session_id": "a"}
OPENAI = {
    "timestamp": 17.5,
    "request": {"messages": [{"role": "user", "content": "what?"}], "max_tokens": 5},
    "response": {
        "choices": [{"message": {"content": "that"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    },
}
TOKENS = {"body": {"prompt": [1, 2, 3], "max_tokens": 9}, "time": "2026-01-02T03:04:05"}
LENGTHS = {"timestamp": 1.5, "prompt_tokens": 4, "completion_tokens": 2, "session_id": "s"}
RESULT = {"input_lens": [5, 6], "output_lens": [1, 2], "start_times": [1.0, 0.5], "errors": [""]}
SERVED = {"request_start_time": 1.5, "prompt_tokens": 5, "output_tokens": 6, "info": {}}
REPORT = {"benchmarks": [{"requests": {"successful": [SERVED, SERVED]}}]}
LINES: dict[str, tuple[list[Any], Any]] = {
    "recording": ([HEADER, BEGAN], RECORDED),
    "mooncake": ([MOONCAKE, MOONCAKE], {**MOONCAKE, "timestamp": 3000}),
    "lmcache": ([LMCACHE], {**LMCACHE, "timestamp": 9}),
    "openai": ([OPENAI], {**OPENAI, "timestamp": 18}),
    "token-ids": ([TOKENS], TOKENS),
    "lengths": ([LENGTHS], {**LENGTHS, "timestamp": 2}),
    "vllm-bench": ([], RESULT),
    "guidellm": ([], REPORT),
}
"""By format: lines that are good, and one of which a value is replaced."""


def numbers(value, path=()):
    """Yield the paths to all numbers of a document."""
    if isinstance(value, bool | str):
        return
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(each, (*path, key))
        return
    yield path


PLACES = [(name, path) for name, (_, row) in LINES.items() for path in numbers(row)]


def written(row, path, value):
    """A document as text, with another value at a place."""
    row = copy.deepcopy(row)
    *parents, last = path
    at = row
    for key in parents:
        at = at[key]
    at[last] = "HERE"
    return json.dumps(row).replace('"HERE"', value)


PLAYED: set[str] = set()
"""Calls that were played: most odd values leave the others."""


def read_or_words(name):
    """The trace of a name, or what is said where there is none."""
    try:
        return read(name)
    except ConfigError as error:
        return str(error)


def calls_or_words(path):
    """What becomes of a file; calls are played to the end."""
    trace = read_or_words(path)
    if isinstance(trace, str):
        assert str(path) in trace
        assert "\n" not in trace
        return trace
    assert trace.calls
    assert len(trace.problems) == min(10, trace.skipped + trace.reordered)
    for each in trace.calls:
        assert 0 <= each.at <= MAX_SECONDS
        assert 0 <= each.think <= MAX_SECONDS
        assert 1 <= tokens_in(each.prompt) <= MAX_TOKENS
        assert 1 <= tokens_in(each.response) <= MAX_TOKENS
        assert each.max_tokens is None or each.max_tokens >= 1
    # Whole millions of tokens would take their time, and are as many of the same.
    short = [
        replace(each, response=[run._replace(length=min(run.length, 500)) for run in each.response])
        for each in trace.calls
    ]
    if repr(short) not in PLAYED:
        played = Simulation(replace(trace, calls=short), PLAN).run()
        assert len(played.outcomes) == len(trace.calls)
        PLAYED.add(repr(short))
    return trace.calls


@pytest.fixture
def few_samples(monkeypatch):
    """Have runs of a year keep few samples of their pods."""
    monkeypatch.setattr(run, "_MAX_SAMPLES", 500)


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize(("name", "path"), PLACES, ids=str)
def test_any_number_of_any_format_may_be_anything(name, path, tmp_path):
    file = tmp_path / "trace.jsonl"
    before, row = LINES[name]
    for value in VALUES:
        lines = [*map(json.dumps, before), written(row, path, value), ""]
        file.write_text("\n".join(lines))
        assert calls_or_words(file) is not None


COLUMNS = {
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens", ["2023-11-16 18:15:46.68", "374", "44"]),
    "sessions": ("Timestamp,Request tokens,Response tokens,Session ID", ["5", "374", "44", "s"]),
    "servegen": ("", ["0", "0.01", "1", "Gamma", "1.0", "2.0"]),
}


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("name", COLUMNS)
def test_any_column_may_be_anything(name, tmp_path):
    head, values = COLUMNS[name]
    file = tmp_path / "chunk-1-trace.csv"
    beside = {"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{2: 1.0}"}}
    (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(beside))
    for column, value in itertools.product(range(len(values)), VALUES):
        changed = [*values[:column], value.strip('"'), *values[column + 1 :]]
        file.write_text("\n".join(filter(None, (head, ",".join(values), ",".join(changed)))) + "\n")
        assert calls_or_words(file) is not None


@pytest.mark.parametrize("name", ["Gamma", "Weibull", "Exponential"])
def test_shares_of_lengths_may_be_anything(name, tmp_path):
    file = tmp_path / "chunk-1-trace.csv"
    file.write_text(f"0,0.05,1,{name},1.0,2.0\n")
    for value, side in itertools.product(VALUES, ("5: %s", "%s: 1.0")):
        shares = f"{{{side % value}, 7: 0.5}}"
        beside = {"0": {"input_tokens": shares, "output_tokens": "{2: 1.0}"}}
        (tmp_path / "chunk-1-dataset.json").write_text(json.dumps(beside))
        trace = read_or_words(file)
        assert "chunk-1" in trace if isinstance(trace, str) else trace.calls


LOG = (
    "INFO %s [l.py:3] Received request c-2: prompt: %s, params: SamplingParams(n=1,"
    " max_tokens=%s), prompt_token_ids: %s, lora_request: None."
)
GOOD = ("11-22 10:00:05", "'a b c'", "7", "[1, 2]")


@pytest.mark.parametrize("place", range(4))
def test_any_value_of_a_log_may_be_anything(place, tmp_path):
    file = tmp_path / "vllm.log"
    more = (
        *("'", '"', r"'\x'", r"'\N{BELL}'", r"'\U00110000'", r"'\ud800'", "'a\x00b'", "'a\rb'"),
        *("99-99 10:00:00", "0000-01-01 00:00:00", "9999-12-31 23:59:59", "[007, 1,, ]"),
        f"[{'9' * 5000}]",
    )
    for value in (*VALUES, *more):
        file.write_text(f"{LOG % GOOD}\n{LOG % (*GOOD[:place], value, *GOOD[place + 1 :])}\n")
        assert calls_or_words(file) is not None


def test_times_that_are_years_from_most_are_left_out_and_named(tmp_path):
    file = tmp_path / "trace.jsonl"
    times = [10**18, *range(0, 5000, 1000), -(10**17)]
    rows = [{**MOONCAKE, "timestamp": at} for at in times]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    trace = read(file)
    assert [call.at for call in trace.calls] == [0, 1, 2, 3, 4]
    assert trace.problems == tuple(
        f"{file}:{number}: its time is more than a year from most others" for number in (1, 7)
    )


@pytest.mark.parametrize("name", ["recording", "mooncake", "lengths", "openai"])
def test_a_line_that_is_nested_deeply_is_named(name, tmp_path):
    file = tmp_path / "trace.jsonl"
    before, row = LINES[name]
    deep = f'{{"messages": {"[" * 100_000}'
    file.write_text("\n".join([*map(json.dumps, (*before, row)), deep, ""]))
    assert read(file).problems[-1] == f"{file}:{len(before) + 2}: it is nested too deeply"
    file.write_text("\n".join([deep, *map(json.dumps, (*before, row)), ""]))
    assert str(calls_or_words(file))


PARAMETERS = ("rate", "to_rate", "cv", "users", "sessions", "longest", "like")


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_any_parameter_may_be_anything(parameter):
    words = ("1000000000", "inf", "1e-300", "1e-7", "1e300", "2000001", "0.01", "", "/dev/zero")
    for value in (*(each.strip('"') for each in VALUES), *words):
        if parameter == "sessions" and value == "1000000":
            continue  # which is many, and not too many
        for name in (f"chat:sessions=3,{parameter}={value}", f"chat:{parameter}={value}"):
            trace = read_or_words(name)
            assert trace if isinstance(trace, str) else trace.calls[-1].at <= MAX_SECONDS


def test_all_parameters_at_their_ends():
    ends = {"rate": ("1e-6", "1e6"), "to_rate": ("1e-6", "1e6"), "cv": ("0.01", "100")}
    for rate, to_rate, cv in itertools.product(*ends.values()):
        for name in WORKLOADS:
            trace = read_or_words(f"{name}:sessions=3,rate={rate},to_rate={to_rate},cv={cv}")
            if isinstance(trace, str):
                assert "after more than a year" in trace
            else:
                assert all(0 <= call.at <= MAX_SECONDS for call in trace.calls)


def bomb(piece, pieces, kind):
    """A piece many times over, packed."""
    if kind == "gz":
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
            for _ in range(pieces):
                file.write(piece)
        return packed.getvalue()
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    return b"".join([*(packer.compress(piece) for _ in range(pieces)), packer.flush()])


@pytest.fixture
def little(monkeypatch):
    """Bounds of files that are soon met."""
    monkeypatch.setattr(source, "MAX_BYTES", 4 << 20)
    monkeypatch.setattr(source, "MAX_LINES", 5_000)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("piece", [b"\n" * 1000, b"x" * 1000, b'{"a": 1}\n' * 100])
def test_what_unpacks_to_more_than_is_read_is_refused(piece, kind, tmp_path):
    good = json.dumps(MOONCAKE).encode() + b"\n"
    file = tmp_path / "trace"
    file.write_bytes(bomb(good, 3, kind) + bomb(piece, 20_000, kind))
    assert "replay a part of it" in calls_or_words(file)


def test_a_line_that_is_too_long_is_left_out_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(source.Source.lines, "__defaults__", (200,))
    good = json.dumps(MOONCAKE)
    file = tmp_path / "trace.jsonl"
    for length, skipped in ((199, 0), (200, 0), (201, 1), (5000, 1)):
        padded = good + " " * (length - len(good))
        file.write_text(f"{good}\n{padded}\n{good}\n{padded}")
        trace = read(file)
        assert (trace.skipped, len(trace.calls)) == (2 * skipped, 4 - 2 * skipped)
        assert trace.problems == tuple(
            f"{file}:{number}: the line has more than 200 bytes" for number in (2, 4)[: 2 * skipped]
        )


def header(name, size, kind=tarfile.REGTYPE):
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    "kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_SPARSE, b"V", b"7"]
)
def test_a_member_of_an_archive_of_any_kind_and_size_is_not_kept(kind, tmp_path):
    good = (json.dumps(MOONCAKE).encode() + b"\n").ljust(512, b"\n")
    file = tmp_path / "trace.tar"
    file.write_bytes(
        header("good", len(good)) + good + header("odd", 1 << 50, kind) + b"\0" * (8 << 20)
    )
    if kind != b"7":
        assert "replay a part of it" in calls_or_words(file)
    file.write_bytes(header("good", len(good)) + good + header("odd", 500, kind) + good)
    assert len(read(file).calls) == (2 if kind == b"7" else 1)


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path / "fifo", Path("/dev/zero"), Path("/dev/null")):
        assert "is not a regular file" in calls_or_words(place)
        with pytest.raises(ConfigError, match="is not a regular file"):
            read(f"chat:like={place}")


def test_traffic_as_a_whole_has_bounds(monkeypatch, tmp_path):
    file = tmp_path / "trace.jsonl"
    rows = [{**LENGTHS, "timestamp": at} for at in range(6)]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    call = Call(at=0.0, prompt=(Run(1, 10),), response=(Run(2, 5),), session=0, marks=(10,))
    for name, most in (("MAX_REQUESTS", 5), ("MAX_PIECES", 15), ("MAX_TOKENS_IN_ALL", 30)):
        with monkeypatch.context() as patched:
            patched.setattr(bounds, name, most)
            assert "replay a part of it" in calls_or_words(file)
            with pytest.raises(ConfigError, match="6 copies of some: it has more than"):
                superposed(Trace(name="some", calls=[call]), 6, seed=0)
            with pytest.raises(ConfigError, match="the workload: it has more than"):
                read("llm-d-a:sessions=2")
    read_traffic(Traffic(source=str(file)))


def test_a_pause_of_a_year_takes_no_time():
    calls = [
        Call(at=at, prompt=(Run(n, 100),), response=(Run(9, 5),), session=n)
        for n, at in enumerate((0.0, 5.0, MAX_SECONDS / 2, MAX_SECONDS))
    ]
    played = Simulation(Trace(name="some", calls=calls), PLAN).run()
    assert [round(each.at) for each in played.outcomes] == [round(call.at) for call in calls]
    assert {each.status.value for each in played.outcomes} == {"served"}
    assert 0 < len(played.samples) < 1 << 21


def test_arrivals_of_flags_are_held_to_bounds_too():
    with pytest.raises(ConfigError, match="after more than a year"):
        read_traffic(Traffic(source="chat:sessions=500", rate=1e-6))
    assert Arrivals().cv == 1
