"""Files of traffic: packed or not, cut off, empty, of no format."""

import codecs
import gzip
import io
import json
import tarfile

import pytest
import zstandard

from epp.errors import ConfigError
from epp.replay.traffic.formats import FORMATS
from epp.replay.traffic.reading import read

ROWS = [
    {"timestamp": 1000 * at, "input_length": 700, "output_length": 3, "hash_ids": [at, -at]}
    for at in range(200)
]
DATA = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def archive(data):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, part in (("a/one.jsonl", data[: len(data) // 2]), ("a/two.jsonl", data)):
            # The first ends with a whole line.
            content = part[: part.rindex(b"\n") + 1]
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


PACKED = {
    "plain.jsonl": DATA,
    "packed.jsonl.gz": gzip.compress(DATA),
    "packed.jsonl.zst": zstandard.ZstdCompressor().compress(DATA),
}


@pytest.mark.parametrize("name", PACKED)
def test_a_file_is_read_however_it_is_packed(tmp_path, name):
    (tmp_path / name).write_bytes(PACKED[name])
    trace = read(tmp_path / name, strict=True)
    assert (len(trace.calls), trace.name) == (len(ROWS), name.split(".")[0])
    assert [call.at for call in trace.calls] == list(range(len(ROWS)))


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path, name):
    rows = b"TIMESTAMP,ContextTokens,GeneratedTokens\n" + b"1,5,5\n" * len(ROWS)
    (tmp_path / name).write_bytes(codecs.BOM_UTF8 + (rows if name == "a.csv" else DATA))
    assert len(read(tmp_path, strict=True).calls) == len(ROWS)


@pytest.mark.parametrize("name", PACKED)
def test_a_file_that_is_cut_off_is_read_up_to_there(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(PACKED[name][: len(PACKED[name]) * 2 // 3])
    with pytest.raises(ConfigError, match="cut off"):
        read(path, strict=True)
    if name.endswith(".zst"):  # one block holds all: nothing of it can be unpacked
        return
    trace = read(path)
    assert trace.skipped == 1
    assert 0 < len(trace.calls) < len(ROWS)
    assert "cut off" in trace.problems[0]


def test_members_of_an_archive_and_files_of_a_folder_are_one_trace(tmp_path):
    path = tmp_path / "some.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(archive(DATA)))
    trace = read(path)
    assert len(trace.calls) > len(ROWS)
    assert trace.problems == (f"{path}/a/two.jsonl:1: its time is before that of the line before",)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "1.jsonl").write_bytes(b"".join(DATA.splitlines(keepends=True)[:50]))
    (folder / "2.jsonl.gz").write_bytes(gzip.compress(DATA[DATA.index(b'{"timestamp": 50000') :]))
    (folder / ".hidden").write_bytes(b"no line")
    assert len(read(folder, strict=True).calls) == len(ROWS)


def test_an_archive_that_is_cut_off(tmp_path):
    path = tmp_path / "some.tar"
    path.write_bytes(archive(DATA)[: len(DATA)])
    assert any("cut off" in each for each in read(path).problems)
    with pytest.raises(ConfigError, match="cut off"):
        read(path, strict=True)


BAD = [
    (b"", "is empty, or cut off: it holds no request"),
    (b"\n\n  \n", "is empty, or cut off: it holds no request"),
    (b'{"size": 3}\n[1]\n"text"\nno json\n', "is of no known format"),
    (b"\xff\xfe\x00\x01", "is of no known format"),
    (
        b'{"timestamp": 0, "input_length": -1, "output_length": 1, "hash_ids": []}\n' * 3,
        r"holds no request that can be used; the first problem is: .*:1: lengths must be positive",
    ),
]


@pytest.mark.parametrize(("data", "problem"), BAD)
def test_a_file_that_holds_no_request(tmp_path, data, problem):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=problem):
        read(path)


def test_the_known_formats_are_named_where_a_file_is_of_none(tmp_path):
    path = tmp_path / "other.jsonl"
    path.write_bytes(b"{}")
    with pytest.raises(ConfigError) as raised:
        read(path)
    assert all(each.name in str(raised.value) for each in FORMATS)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        read(tmp_path / "nowhere.jsonl")


def test_only_the_first_problems_are_kept_as_text(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(DATA + b"{}\n" * 500)
    trace = read(path)
    assert (trace.skipped, len(trace.problems)) == (500, 10)
