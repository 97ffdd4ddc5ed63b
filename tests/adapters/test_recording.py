"""What a recorder writes, what it leaves out, and what it does where it cannot write."""

import contextlib
import errno
import gzip
import json
import os
import stat
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from itertools import count

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from epp.adapters.recording.parts import Parts, check_folder
from epp.adapters.recording.recorder import Recorder
from epp.adapters.recording.writer import RecordingSettings
from epp.errors import Overloaded
from epp.model.decision import Decision
from epp.model.events import EndpointUpserted
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Prompt, Usage
from epp.protocol.extproc.record import Outcome
from epp.protocol.recording import RecordedEndpoint
from epp.values import replaced
from tests.records import record_of
from tests.strategies import endpoint, request

POD = endpoint()
NOTHING = contextlib.nullcontext()
PRIVATE = "the-harbour-master-wrote-down-every-ship"


class Traffic:
    """Requests that a recorder sees, one each call of `pass_by`."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.fleet = Fleet(BlockHasher(b"secret"))
        self.fleet.apply(EndpointUpserted(POD), 0.0)
        self.number = 0

    def pass_by(self, text=PRIVATE * 10, error=None, **fields):
        self.number += 1
        data = text.encode()
        asked = replaced(
            request(f"r{self.number}"),
            prompts=(Prompt(data, marks=(len(data),)),),
            body=data,
            fairness_id="ann@example.com",
            max_tokens=9,
        )
        self.recorder.quoted(self.fleet.quote(asked, 1.0))
        decision = Decision(
            endpoints=(POD,), prompt_tokens=7, predicted_cached_tokens=3, predicted_ttft=0.25
        )
        facts = {
            "id": asked.id,
            "received_at": 1.0,
            "request": asked,
            "decision": None if error else decision,
            "error": error,
            "outcome": Outcome.REJECTED if error else Outcome.COMPLETED,
            "decided_at": 1.5,
            "first_byte_at": 2.0,
            "finished_at": 4.0,
            "usage": Usage(100, 20, 48),
        }
        self.recorder.ended(record_of(**facts | fields))


@pytest.fixture
def settings(tmp_path):
    return RecordingSettings(
        folder=tmp_path / "deep" / "down", configuration="linear", gather=0.0, retry=0.0
    )


def recorded(settings, *texts, clock=lambda: 0.5):
    """Record requests of these texts; give the recorder."""
    recorder = Recorder(settings, clock)
    traffic = Traffic(recorder)
    recorder.start()
    for text in texts:
        traffic.pass_by(text)
    recorder.stop()
    return recorder


def lines(settings):
    """The lines of each part, read by nothing of ours."""
    return [
        [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for path in sorted(settings.folder.iterdir())
    ]


def test_a_request_is_a_line_of_what_was_seen(settings):
    recorder = recorded(settings, "hello " * 100)
    ((header, line),) = lines(settings)
    assert (header["version"], header["part"], header["configuration"]) == (1, 1, "linear")
    (prompt,) = line.pop("prompts")
    assert (prompt["size"], prompt["marks"]) == (600, [600])
    assert line.pop("tenant") not in {"", "ann@example.com"}
    assert line == {
        "kind": "request",
        "n": 1,
        "at": 0.5,  # 1.0 on a clock that stood at 0.5 at the start
        "outcome": "completed",
        "api": "completions",
        "model": "m",
        "stream": True,
        "max_tokens": 9,
        "endpoint": POD.id,
        "profile": "default",
        "predicted_cached_tokens": 3,
        "predicted_ttft": 0.25,
        "decided": 0.5,
        "first": 1.0,
        "end": 3.0,
        "prompt_tokens": 100,
        "cached_tokens": 48,
        "generated_tokens": 20,
    }
    assert dict(recorder.counts) == {"written": 1, "dropped": 0, "failed": 0}
    assert recorder.bytes == sum(each.stat().st_size for each in settings.folder.iterdir())


def test_a_refusal_is_a_line_with_its_prompt_and_reason(settings):
    recorder = Recorder(settings, lambda: 0.5)
    recorder.start()
    Traffic(recorder).pass_by(error=Overloaded("full", reason="saturated"), usage=None)
    recorder.stop()
    ((_, line),) = lines(settings)
    assert (line["outcome"], line["reason"], "endpoint" in line) == ("rejected", "saturated", False)
    assert line["prompts"][0]["size"] == len(PRIVATE * 10)


def test_nothing_that_a_client_wrote_is_in_it(settings):
    recorder = Recorder(settings, lambda: 0.5)
    traffic = Traffic(recorder)
    recorder.start()
    traffic.pass_by()
    traffic.pass_by(error=Overloaded("full"))
    recorder.stop()
    text = json.dumps(lines(settings))
    assert "harbour" not in text
    assert "ann@" not in text
    quote = traffic.fleet.quote(request("r", PRIVATE * 10), 1.0)
    packed = b"".join(each.to_bytes(8, "little") for each in quote.chains[0].hashes)
    for part in lines(settings):
        for line in part[1:]:
            assert line["prompts"][0].get("hashes") != packed


def test_two_recordings_have_no_hash_in_common(settings):
    recorded(settings, "hello " * 100)
    recorded(settings, "hello " * 100)
    (first, one), (second, other) = lines(settings)
    assert first["salt"] != second["salt"]
    assert one["prompts"][0]["hashes"] != other["prompts"][0]["hashes"]
    assert one["tenant"] != other["tenant"]


def test_endpoints_are_in_it_when_they_change_and_in_each_part(settings):
    recorder = Recorder(settings, lambda: 0.5)
    pods = [RecordedEndpoint(id="default/a", kv_tokens=1_000, block_tokens=16)]
    recorder.start()
    for _ in range(3):
        recorder.saw(pods)
    recorder.saw([*pods, *pods])
    recorder.stop()
    ((_, first, second),) = lines(settings)
    one = {"id": "default/a", "kv_tokens": 1_000, "block_tokens": 16}
    assert (first["kind"], first["endpoints"]) == ("endpoints", [one])
    assert second["endpoints"] == [one, one]


def test_what_the_thread_cannot_keep_up_with_is_dropped_and_counted(settings):
    recorder = Recorder(settings, lambda: 0.5, most_notes=3)
    traffic = Traffic(recorder)
    for _ in range(5):  # nobody writes
        traffic.pass_by()
    recorder.start()
    recorder.stop()
    assert dict(recorder.counts) == {"written": 3, "dropped": 2, "failed": 0}
    ((_, lost, *requests),) = lines(settings)
    assert (lost["kind"], lost["requests"]) == ("lost", 2)
    assert [each["n"] for each in requests] == [1, 2, 3]


def text_of(number, kilobytes=3):
    """A text that no other number has the start of."""
    return f"{number:09} {number * 7919:012}" * (45 * kilobytes)


def test_parts_are_rotated_and_the_oldest_go(settings):
    most, member = 1 << 20, 1 << 18  # lines are written when they are so many bytes, unpacked
    settings = replace(settings, most_bytes=most)
    texts = (PRIVATE * 10 + text_of(number, 9) for number in range(1, 4_001))
    recorder = recorded(settings, *texts)
    parts = lines(settings)
    sizes = [each.stat().st_size for each in settings.folder.iterdir()]
    assert sum(sizes) <= most + member
    assert max(sizes) <= most // 16 + member  # a part has its size before the next begins
    assert recorder.bytes > most + member
    assert [header["part"] for header, *_ in parts] == list(
        range(parts[0][0]["part"], parts[0][0]["part"] + len(parts))
    )
    assert len({header["salt"] for header, *_ in parts}) == 1
    numbers = [line["n"] for part in parts for line in part[1:]]
    assert numbers == list(range(numbers[0], 4_001))
    for part in parts:
        known = {prompt["number"] for line in part[1:] for prompt in line["prompts"]}
        assert {prompt.get("like", 0) for line in part[1:] for prompt in line["prompts"]} <= {
            0,
            *known,
        }


@pytest.fixture
def writing(tmp_path):
    """Makes the parts of writers that began on some day, in one folder."""
    with contextlib.ExitStack() as open_parts:

        def begun(salt, day):
            parts = Parts(tmp_path, "p", salt, datetime(2026, 11, day, tzinfo=UTC), 100_000)
            open_parts.callback(parts.close)
            return parts

        yield begun


def test_a_writer_that_began_later_leaves_the_open_part_of_another_one(writing, tmp_path):
    older, newer = writing("aa", 1), writing("bb", 2)
    newer.begin()
    newer.append(os.urandom(90_000))
    newer.begin()
    newer.append(os.urandom(1_000))
    assert not newer.full
    older.begin()
    older.append(os.urandom(20_000))
    written = ["bb-000001", "bb-000002", "aa-000001"]
    for at, name in enumerate(written):
        (path,) = tmp_path.glob(f"*-{name}.*")
        os.utime(path, (at, at))
    newer.begin()
    left = [
        path.name[-len("aa-000001.jsonl.gz") :][: len("aa-000001")] for path in tmp_path.iterdir()
    ]
    assert sorted(left) == ["aa-000001", "bb-000002", "bb-000003"]


def test_a_part_that_somebody_removed_is_not_written_on(writing, tmp_path):
    parts = writing("aa", 1)
    parts.begin()
    parts.append(b"lost")
    assert not parts.full
    for path in tmp_path.iterdir():
        path.unlink()
    assert parts.full
    parts.begin()
    parts.append(b"kept")
    (path,) = tmp_path.iterdir()
    assert gzip.decompress(path.read_bytes()) == b"kept"


def test_parts_that_go_while_they_are_counted_are_not_missed(writing, tmp_path):
    gone = tmp_path / "p-20261101T000000.000000Z-cc-000001.jsonl.gz"
    gone.symlink_to(tmp_path / "nowhere")  # listed, and no longer there
    parts = writing("aa", 1)
    parts.begin()
    assert parts.append(b"line") > 0


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_what_is_made_is_the_users_alone_whatever_the_umask(settings, umask):
    settings.folder.parent.mkdir()
    before = os.umask(umask)
    try:
        recorded(settings, PRIVATE)
    finally:
        os.umask(before)
    (part,) = settings.folder.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (settings.folder, part)]
    assert modes == [0o700, 0o600]


def test_a_folder_that_is_there_stays_as_it_is(settings):
    settings.folder.mkdir(parents=True)
    settings.folder.chmod(0o750)
    recorded(settings, PRIVATE)
    (part,) = settings.folder.iterdir()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (settings.folder, part)]
    assert modes == [0o750, 0o600]


def test_another_pool_keeps_its_parts(settings):
    settings = replace(settings, most_bytes=1 << 12)
    recorded(replace(settings, pool="team/other"), "hello " * 100)
    written = sum(recorded(settings, *map(text_of, range(8))).bytes for _ in range(3))
    paths = list(settings.folder.iterdir())
    assert sum(path.name.startswith("team_other-") for path in paths) == 1
    kept = sum(path.stat().st_size for path in paths if path.name.startswith("default-"))
    assert kept < written


def until_gone(in_the_way):
    """A clock: each look at it takes a second, and at last the file is gone."""
    seconds = count(0.5)

    def clock():
        now = next(seconds)
        if now > 20 and in_the_way.is_file():
            in_the_way.unlink()
        return now

    return clock


def test_a_folder_that_cannot_be_is_said_once_and_recording_goes_on_when_it_can(tmp_path):
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    with capture_logs() as logs:
        settings = RecordingSettings(folder=in_the_way, gather=0.0, retry=5.0)
        recorder = recorded(settings, *map(text_of, range(60)), clock=until_gone(in_the_way))
    (failed,) = (line for line in logs if line["event"] == "recording.failed")
    assert failed["folder"] == str(in_the_way)
    assert failed["error"] == "Not a directory"
    counts = dict(recorder.counts)
    assert counts == {"written": 60 - counts["failed"], "dropped": 0, "failed": counts["failed"]}
    assert 0 < counts["failed"] <= 20  # seconds, and a look each
    ((_, lost, *requests),) = lines(settings)
    assert lost["requests"] == counts["failed"]
    assert [each["n"] for each in requests] == list(range(1, counts["written"] + 1))


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("there", [True, False])
def test_only_of_a_full_disk_room_is_expected_later(code, there, tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    if not there:
        monkeypatch.setattr(os, "mkdir", refused)
    folder = tmp_path if there else tmp_path / "recording"
    refuses = pytest.raises(OSError, match="Read-only") if code == errno.EROFS else NOTHING
    with refuses:
        check_folder(folder)


def test_what_a_full_disk_refused_no_longer_waits_for_it(tmp_path):
    (in_the_way := tmp_path / "file").write_text("not a folder")
    recorder = recorded(RecordingSettings(folder=in_the_way, gather=0.0), *map(text_of, range(9)))
    assert dict(recorder.counts) == {"written": 0, "dropped": 0, "failed": 9}
    assert recorder._writer.blocks_taken == recorder._blocks_put > 9


def test_recording_goes_on_after_its_file_is_lost(settings, monkeypatch):
    """As on NFS, where a file that another replica removes is stale."""
    looked_at, looks = os.fstat, count()

    def stale_at_first(number):
        if next(looks) == 0:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return looked_at(number)

    monkeypatch.setattr(os, "fstat", stale_at_first)
    with capture_logs() as logs:
        recorder = recorded(settings, "lost", "after", "that")
    assert dict(recorder.counts) == {"written": 2, "dropped": 0, "failed": 1}
    assert [each["error"] for each in logs if "error" in each] == ["Stale file handle"]


def test_endpoints_that_came_while_nothing_could_be_written_are_in_the_next_part(tmp_path):
    (in_the_way := tmp_path / "file").write_text("not a folder")
    settings = RecordingSettings(folder=in_the_way, gather=0.0, retry=5.0)
    recorder = Recorder(settings, until_gone(in_the_way))
    recorder.saw([RecordedEndpoint(id="default/a", kv_tokens=1_000, block_tokens=16)])
    traffic = Traffic(recorder)
    for text in map(text_of, range(60)):
        traffic.pass_by(text)
    recorder.start()
    recorder.stop()
    ((_, pool, *_),) = lines(settings)
    assert [each["id"] for each in pool["endpoints"]] == ["default/a"]


FULL = """
import resource, signal, sys
from pathlib import Path
from msgspec.structs import replace
from tests.adapters.test_recording import RecordingSettings, recorded, text_of
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
recorder = recorded(
    RecordingSettings(folder=Path(sys.argv[1]), gather=0.0, retry=int(sys.argv[3])),
    *map(text_of, range(40)),
)
print(dict(recorder.counts))
"""


def on_a_full_disk(folder, most_bytes, retry):
    """Record 40 requests where a file takes so many bytes; give what was said, and the counts."""
    argv = [sys.executable, "-c", FULL, *map(str, (folder, most_bytes, retry))]
    said = subprocess.run(argv, capture_output=True, text=True, check=True)
    return said.stderr, json.loads(said.stdout.replace("'", '"'))


def test_a_disk_that_takes_no_more_costs_records_only(tmp_path):
    said, counts = on_a_full_disk(tmp_path, 2000, 1000)
    assert counts["written"] + counts["failed"] == 40
    assert counts["failed"] > 0
    assert said.count("recording.failed") == 1
    assert "File too large" in said


def test_parts_that_cannot_be_begun_leave_no_files(tmp_path):
    said, counts = on_a_full_disk(tmp_path, 10, 0)
    assert counts == {"written": 0, "dropped": 0, "failed": 40}
    assert said.count("recording.failed") == 1
    assert list(tmp_path.iterdir()) == []


def test_quotes_of_requests_that_never_end_are_few(settings):
    recorder = Recorder(settings, lambda: 0.5)
    fleet = Traffic(recorder).fleet
    for number in range((1 << 16) + 5):
        recorder.quoted(fleet.quote(request(f"r{number}"), 1.0))
    assert len(recorder._quotes) == 1 << 16
