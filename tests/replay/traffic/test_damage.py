"""Files that are damaged anywhere are read, or refused in words: nothing else comes of them."""

import gzip
import io
import json
import tarfile

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epp.errors import ConfigError
from epp.replay.traffic.reading import read

RESULT = {"input_lens": [5, 6], "output_lens": [1, 2], "start_times": [1.0, 0.5], "errors": [""]}
SERVED = {"request_start_time": 1.5, "prompt_tokens": 5, "output_tokens": 6, "info": {}}
CHAT = {
    "timestamp": 17.5,
    "request": {"messages": [{"role": "user", "content": [{"text": "what?"}]}], "max_tokens": 5},
    "response": {"choices": [{"message": {"content": "that"}}], "usage": {"prompt_tokens": 7}},
}
SAMPLES = {
    "mooncake": {"timestamp": 3000, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]},
    "lmcache": {"timestamp": 7, "input": "user: x\nuser: y", "output": "z", "session_id": "a"},
    "openai": CHAT,
    "completion": {"body": {"prompt": [1, 2, 3], "max_tokens": 9}, "time": "2026-01-02T03:04:05"},
    "vllm-bench": RESULT,
    "guidellm": {"benchmarks": [{"requests": {"successful": [SERVED], "errored": [SERVED]}}]},
    "lengths": {"timestamp": 1.5, "prompt_tokens": 4, "completion_tokens": 2, "session_id": "s"},
}
TEXTS = {name: f"{json.dumps(row)}\n" * 3 for name, row in SAMPLES.items()} | {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:15:46.68,374,44\n" * 3,
    "vllm-log": "INFO 11-22 10:00:05 [l.py:3] Received request c-2: prompt: 'a b c', params:"
    " SamplingParams(n=1, max_tokens=7), prompt_token_ids: [1, 2], lora_request: None.\n" * 2,
    "servegen": "0,0.5,1,Gamma,1.0,2.0\n600,0.1,1,Weibull,1.0,2.0\n",
}
PIECES = st.sampled_from(
    [b"", b"-", b"0", b"null", b"{", b"}", b"[]", b'"', b",", b"\n", b"\xff", b"1e999", b"9" * 30]
)


def calls_or_words(path):
    try:
        return read(path).calls
    except ConfigError as error:
        return str(error)


def packed(data):
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("one", "two"):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    zstd = zstandard.ZstdCompressor()
    return {
        "gz": gzip.compress(data),
        "zst": zstd.compress(data),
        "tar": archive.getvalue(),
        "tar.gz": gzip.compress(archive.getvalue()),
        "tar.zst": zstd.compress(archive.getvalue()),
    }


PACKED = packed(TEXTS["mooncake"].encode() * 40)


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_damage_of_packed_files_is_too(tmp_path, name, draw):
    data = bytearray(PACKED[name])
    places = st.integers(0, min(len(data), 2000) - 1)
    for at in draw.draw(st.lists(places, max_size=3)):
        data[at] ^= 1 << draw.draw(st.integers(0, 7))
    path = tmp_path / f"trace.{name}"
    path.write_bytes(data[: draw.draw(st.integers(0, len(data)))])
    calls = calls_or_words(path)
    assert not isinstance(calls, str) or str(path) in calls


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.integers(0, 600), st.integers(0, 40), PIECES), max_size=4))
def test_damage_is_a_matter_of_words(tmp_path, name, edits):
    data = TEXTS[name].encode()
    for at, taken, piece in edits:
        data = data[:at] + piece + data[at + taken :]
    path = tmp_path / "chunk-1-trace.csv"
    path.write_bytes(data)
    (tmp_path / "chunk-1-dataset.json").write_text(
        '{"0": {"input_tokens": "{5: 1.0}", "output_tokens": "{2: 1.0}"}}'
    )
    calls = calls_or_words(path)
    if isinstance(calls, str):
        assert str(path) in calls
        return
    assert calls
    for number, call in enumerate(calls):
        assert call.after is None or call.after < number
        assert call.at >= 0
        assert min(run.length for run in (*call.prompt, *call.response)) > 0
