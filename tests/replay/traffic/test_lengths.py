"""Traces of times and lengths: CSV, lines of JSON, and what load generators save."""

import json

import pytest

from epp.errors import ConfigError
from epp.replay.traffic.calls import tokens_in
from epp.replay.traffic.reading import read


def written(folder, text, name="trace.csv"):
    path = folder / name
    path.write_text(text)
    return path


def lengths(trace):
    return [(tokens_in(call.prompt), tokens_in(call.response)) for call in trace.calls]


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,0
2023-11-16 18:16:46.6805900,879,55
"""


def test_azures_csv(tmp_path):
    trace = read(written(tmp_path, AZURE), strict=True)
    assert lengths(trace) == [(374, 44), (396, 1), (879, 55)]
    assert [call.at for call in trace.calls] == pytest.approx([0, 4.314579, 60], abs=1e-5)
    assert len({call.prompt[0].token for call in trace.calls}) == 3


def test_each_file_of_a_folder_may_have_a_head_of_its_own(tmp_path):
    written(tmp_path, AZURE, "1.csv")
    written(tmp_path, "GeneratedTokens,ContextTokens,TIMESTAMP\n7,900,2023-11-16 19:00:00\n", "2")
    written(tmp_path, "8,901,2023-11-16 19:00:01\n", "3")  # a part of the one before
    found = lengths(read(tmp_path, strict=True))
    assert found == [(374, 44), (396, 1), (879, 55), (900, 7), (901, 8)]


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("2023-11-16 18:15:51,12", "it has 2 columns, and the head 3"),
        ("2023-11-16 18:15:51,-3,4", "lengths must be positive"),
        ("2023-11-16 18:15:51,0,4", "lengths must be positive"),
        ("yesterday,3,4", "Invalid isoformat string"),
        ("2023-11-16 18:15:51,3.5,4", "`3.5` is not a number of tokens"),
        ("nan,3,4", "its time is not a number"),
    ],
)
def test_a_bad_row(tmp_path, bad, problem):
    path = written(tmp_path, AZURE + bad + "\n")
    with pytest.raises(ConfigError, match=r"trace\.csv:5: ") as raised:
        read(path, strict=True)
    assert problem in str(raised.value)
    assert (len(read(path).calls), read(path).skipped) == (3, 1)


@pytest.mark.parametrize("scale", [1, 10**3, 10**6, 10**9])
def test_epochs_in_any_unit(tmp_path, scale):
    begun = 1_760_000_000
    rows = [
        {"timestamp": (begun + at) * scale, "prompt_tokens": 5, "completion_tokens": 2}
        for at in (0, 3)
    ]
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "trace.jsonl")
    assert [call.at for call in read(path, strict=True).calls] == pytest.approx([0, 3])


def test_times_of_any_zone_and_what_anthropic_counts_beside_a_prompt(tmp_path):
    times = ("2026-01-01T12:00:00Z", "2026-01-01T14:00:05+02:00", "2026-01-01T12:00:09")
    more = {"cache_read_input_tokens": 90, "output_tokens": 2, "user": None}
    rows = "".join(
        json.dumps({"time": at, name: 100, **more}) + "\n"
        for at, name in zip(times, ("input_tokens", "input_tokens", "prompt_tokens"), strict=True)
    )
    trace = read(written(tmp_path, rows, "trace.jsonl"), strict=True)
    assert [call.at for call in trace.calls] == [0, 5, 9]
    assert lengths(trace) == [(190, 2), (190, 2), (100, 2)]
    assert {call.tenant for call in trace.calls} == {""}


def test_a_column_of_sessions_makes_conversations(tmp_path):
    text = "Timestamp,Session ID,Request tokens,Response tokens\n0,a,10,5\n2,b,7,1\n3.5,a,30,5\n"
    first, other, later = read(written(tmp_path, text), strict=True).calls
    assert (first.after, other.after, later.after) == (None, None, 0)
    assert first.prompt[0].token == first.response[0].token == later.prompt[0].token
    assert other.session != later.session == first.session


def test_a_session_may_be_called_as_the_number_of_a_request_without_one(tmp_path):
    text = "Timestamp,Session ID,Request tokens,Response tokens\n0,1,10,5\n2,,7,1\n3.5,1,30,5\n"
    first, other, later = read(written(tmp_path, text), strict=True).calls
    assert (first.after, other.after, later.after) == (None, None, 0)
    assert other.session != later.session == first.session


@pytest.mark.parametrize(
    "head",
    [
        "startTime,prompt_tokens,completion_tokens,messages,response",  # LiteLLM's
        "created_at,tokens_in,tokens_out,request,response",  # Cloudflare's
    ],
)
def test_a_table_has_lengths_whatever_else_is_in_it(tmp_path, head):
    path = tmp_path / "log.csv"
    path.write_text(
        f"{head}\n2026-01-01 00:00:00,5,6,{{}},{{}}\n2026-01-01 00:00:09,7,8,{{}},{{}}\n"
    )
    first, second = read(path, strict=True).calls
    assert (first.at, second.at) == (0, 9)
    assert [tokens_in(part) for part in (second.prompt, second.response)] == [7, 8]


def test_a_column_of_users_tells_tenants_and_no_conversations(tmp_path):
    text = "timestamp,user,input_tokens,output_tokens\n0,a,10,5\n1,b,7,1\n2,a,30,5\n"
    calls = read(written(tmp_path, text), strict=True).calls
    assert [(call.after, call.tenant) for call in calls] == [(None, "a"), (None, "b"), (None, "a")]
    assert len({call.prompt[0].token for call in calls}) == len(calls)


def result(**more):
    lists = {
        "input_lens": [100, 200, 300],
        "output_lens": [10, 20, 0],
        "start_times": [50.5, 50.0, 52.0],
        "errors": ["", "", "Traceback\nTimeout"],
    }
    return {"backend": "vllm", "request_rate": 2.0, **lists, **more}


def test_what_vllm_bench_serve_saves(tmp_path):
    path = written(tmp_path, json.dumps(result(), indent=2), "result.json")
    trace = read(path)
    assert lengths(trace) == [(200, 20), (100, 10)]
    assert [call.at for call in trace.calls] == [0, 0.5]
    assert trace.problems == (f"{path}, result 1, request 3: it failed: Timeout",)
    appended = written(tmp_path, f"{json.dumps(result())}\n" * 2, "appended.json")
    assert len(read(appended).calls) == 4


@pytest.mark.parametrize("more", [{"start_times": []}, {"input_lens": [1]}])
def test_what_vllm_bench_serve_saves_without_details(tmp_path, more):
    with pytest.raises(ConfigError, match="--save-detailed"):
        read(written(tmp_path, json.dumps(result(**more)), "result.json"))


def test_guidellms_report(tmp_path):
    def request(at, prompt, response, conversation=None):
        return {
            "request_start_time": at,
            "prompt_tokens": prompt,
            "output_tokens": response,
            "info": {"conversation_id": conversation},
        }

    served = [request(1000.0, 100, 9, "c"), request(1003.0, 150, 8, "c"), request(1001.0, 5, 5)]
    by_metrics = {
        "info": {"timings": {"request_start": 1100.0}},
        "input_metrics": {"text_tokens": 40},
        "output_metrics": {"text_tokens": 4},
    }
    report = {
        "metadata": {"version": 2},
        "benchmarks": [
            {"requests": {"successful": served, "errored": [request(1.0, 1, 1)]}},
            {"requests": {"successful": [by_metrics, request(1101.0, None, 3)]}},
        ],
    }
    path = written(tmp_path, json.dumps(report, indent=1), "benchmarks.json")
    trace = read(path)
    assert lengths(trace) == [(100, 9), (5, 5), (150, 8), (40, 4)]
    assert [call.at for call in trace.calls] == [0, 1, 3, 100]
    assert [call.after for call in trace.calls] == [None, None, 0, None]
    assert trace.skipped == 2
    assert "benchmark 1, errored request 1: it was not served" in trace.problems[0]
    assert "benchmark 2, request 2: Expected `int`" in trace.problems[1]
    with pytest.raises(ConfigError, match="errored request 1"):
        read(path, strict=True)


def test_a_document_that_is_cut_off(tmp_path):
    whole = json.dumps(result(), indent=2)
    path = written(tmp_path, whole[: len(whole) * 2 // 3], "result.json")
    with pytest.raises(ConfigError, match="no known format"):
        read(path)


def clients(folder):
    """Two clients: one quiet for an hour, then of a request in two seconds; one with bursts."""
    windows = {
        0: "0,0.5,1,Gamma,1.0,2.0\n600,0,0,,0,0\n3600,0.5,1,Gamma,1.0,2.0\n",
        1: "0,0,0,,0,0\n3600,0.25,4,Weibull,0.4,1.0\n4200,0.25,4,Weibull,0.4,1.0\n",
    }
    for client, text in windows.items():
        (folder / f"chunk-{client}-trace.csv").write_text(text)
        data = {
            "0": {"input_tokens": "{}", "output_tokens": "{}"},
            "3600": {
                "input_tokens": str({100 + client: 0.5, 300 + client: 0.5}),
                "output_tokens": str({10: 1.0}),
            },
        }
        (folder / f"chunk-{client}-dataset.json").write_text(json.dumps(data))
    return folder


def test_servegens_clients_come_in_their_busiest_hour(tmp_path):
    trace = read(clients(tmp_path), seed=1, strict=True)
    assert trace == read(tmp_path, seed=1)
    # 300 requests of the first client in ten minutes, and 150 of the second in each of two.
    assert len(trace.calls) == 600
    sizes = [asked for asked, _ in lengths(trace)]
    assert set(sizes) == {100, 300, 101, 301}
    assert sum(size % 2 == 0 for size in sizes) == 300
    assert {answer for _, answer in lengths(trace)} == {10}
    assert all(0 <= call.at < 1200 for call in trace.calls)
    assert sum(call.at >= 600 for call in trace.calls) == pytest.approx(150, abs=1)


def test_one_client_of_servegen_and_bad_windows(tmp_path):
    path = clients(tmp_path) / "chunk-0-trace.csv"
    assert len(read(path).calls) == 300
    path.write_text(path.read_text() + "7200,-3,0,Gamma,1,1\n7800,nonsense\n")
    with pytest.raises(ConfigError, match=r"trace\.csv:4: -3 is not a rate"):
        read(path, strict=True)
    assert read(path).skipped == 2
    (tmp_path / "chunk-0-dataset.json").unlink()
    with pytest.raises(ConfigError, match="the lengths of"):
        read(path)
