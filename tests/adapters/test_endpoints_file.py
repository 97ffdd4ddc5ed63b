import asyncio
import contextlib
import os
import subprocess
import sys
import threading

import pytest
import yaml
from structlog.testing import capture_logs

from epp.adapters.endpoints_file import ClusterNames, EndpointsFile
from epp.errors import ConfigError
from epp.model.events import EndpointRemoved, EndpointUpserted, Listed
from epp.up.proxy import put
from tests.tasks import running, until

POLL = 0.005


class Told:
    """Collects events until they are taken."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)

    def take(self):
        taken, self.events = self.events, []
        return [summary(event) for event in taken]

    async def next(self, count):
        await until(lambda: len(self.events) >= count)
        return self.take()


def summary(event):
    match event:
        case EndpointUpserted(endpoint):
            return ("up", endpoint.id, endpoint.target)
        case EndpointRemoved(endpoint_id):
            return ("gone", endpoint_id)
        case Listed():
            return ("listed",)
        case _:
            return (type(event).__name__,)


def write(path, **targets):
    entries = [
        {"name": name, "address": target.split(":")[0], "port": int(target.split(":")[1])}
        for name, target in targets.items()
    ]
    put(path, yaml.safe_dump({"endpoints": entries}))


async def logged(logs, event):
    await until(lambda: event in [entry["event"] for entry in logs])


@contextlib.asynccontextmanager
async def following(path):
    told = Told()
    source = EndpointsFile(path, told, poll=POLL)
    await source.load()
    async with running(source.run()):
        yield told


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "endpoints.yaml"
    write(path, a="10.0.0.1:1", b="10.0.0.2:2")
    return path


BOTH = [("up", "default/a", "10.0.0.1:1"), ("up", "default/b", "10.0.0.2:2"), ("listed",)]


async def test_the_first_read_lists_everything(path):
    told = Told()
    await EndpointsFile(path, told).load()
    assert told.take() == BOTH


async def test_no_thread_goes_on_for_who_stops_following(path):
    begun, ended = threading.Event(), threading.Event()

    class Noted(EndpointsFile):
        def _next(self, over):
            begun.set()
            try:
                return super()._next(over)
            finally:
                ended.set()

    source = Noted(path, Told(), poll=60)
    await source.load()
    async with running(source.run()):
        while not begun.is_set():
            await asyncio.sleep(POLL)
        assert not ended.is_set()
    assert ended.wait(5)


async def test_a_first_read_that_fails_is_a_config_error(tmp_path):
    missing = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match=r"none.yaml: cannot be read: No such file"):
        await EndpointsFile(missing, Told()).load()
    with pytest.raises(ConfigError, match="is not a regular file"):
        await EndpointsFile(tmp_path, Told()).load()
    missing.write_text("endpoints: [{name: a, address: 10.0.0.1, port: 99999}]")
    with pytest.raises(ConfigError, match=r"none.yaml: endpoints\[0\].port: "):
        await EndpointsFile(missing, Told()).load()


async def test_only_differences_are_applied(path):
    async with following(path) as told:
        assert told.take() == BOTH
        write(path, b="10.0.0.2:2", c="10.0.0.3:3")
        assert await told.next(2) == [("gone", "default/a"), ("up", "default/c", "10.0.0.3:3")]


async def test_another_address_is_another_endpoint(path):
    async with following(path) as told:
        told.take()
        write(path, a="10.0.0.2:2", b="10.0.0.1:1")
        assert await told.next(4) == [
            ("gone", "default/a"),
            ("gone", "default/b"),
            ("up", "default/a", "10.0.0.2:2"),
            ("up", "default/b", "10.0.0.1:1"),
        ]


async def test_another_rank_is_another_endpoint(path):
    entry = "endpoints: [{{name: a, address: 10.0.0.1, port: 1, dataParallelRank: {}}}]"
    path.write_text(entry.format(0))
    async with following(path) as told:
        told.take()
        path.write_text(entry.format(1))
        assert await told.next(2) == [("gone", "default/a"), ("up", "default/a", "10.0.0.1:1")]


async def test_labels_change_in_place(path):
    async with following(path) as told:
        told.take()
        path.write_text(
            "endpoints: [{name: a, address: 10.0.0.1, port: 1, labels: {x: y}},"
            " {name: b, address: 10.0.0.2, port: 2}]"
        )
        assert await told.next(1) == [("up", "default/a", "10.0.0.1:1")]


async def test_a_mounted_config_map_is_followed_through_its_symlinks(tmp_path):
    for name, target in (("v1", "10.0.0.1:1"), ("v2", "10.0.0.9:9")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "endpoints.yaml", a=target)
    (tmp_path / "..data").symlink_to("v1")
    path = tmp_path / "endpoints.yaml"
    path.symlink_to("..data/endpoints.yaml")
    async with following(path) as told:
        told.take()
        (tmp_path / "..data_tmp").symlink_to("v2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        assert await told.next(2) == [("gone", "default/a"), ("up", "default/a", "10.0.0.9:9")]


async def test_a_broken_file_keeps_the_last_valid_endpoints(path):
    with capture_logs() as logs:
        async with following(path) as told:
            told.take()
            put(path, "endpoints: [{name: a, address: 10.0.0.1, port: 0}]")
            await logged(logs, "endpoints_file.rejected")
            assert told.take() == []
            write(path, a="10.0.0.1:1")
            assert await told.next(1) == [("gone", "default/b")]
            await logged(logs, "endpoints_file.recovered")
    assert [entry["event"] for entry in logs] == [
        "endpoints_file.rejected",
        "endpoints_file.recovered",
        "endpoints_file.changed",
    ]
    assert logs[0]["error"].startswith("endpoints[0].port: ")


async def test_a_deleted_file_keeps_the_last_valid_endpoints(path):
    lines = []
    async with following(path) as told:
        told.take()
        for _ in range(2):
            with capture_logs() as logs:
                path.unlink()
                await logged(logs, "endpoints_file.rejected")
                write(path, a="10.0.0.1:1", b="10.0.0.2:2")
                await logged(logs, "endpoints_file.recovered")
            assert told.take() == []
            lines += logs
    events = ["endpoints_file.rejected", "endpoints_file.recovered"]
    assert [line["event"] for line in lines] == events * 2
    assert lines[0]["path"] == str(path)
    assert lines[0]["error"] == "cannot be read: No such file or directory"


async def test_what_changes_is_logged(path):
    many = {f"n{number:02}": f"10.0.1.{number}:1" for number in range(1, 12)}
    with capture_logs() as logs:
        async with following(path) as told:
            write(path, a="10.0.0.9:9", c="10.0.0.3:3")
            await told.next(7)
            write(path, **many)
            await told.next(13)
            await until(lambda: len(logs) >= 2)
    line = {"event": "endpoints_file.changed", "log_level": "info", "path": str(path)}
    assert logs == [
        line
        | {"added": "default/c", "removed": "default/b", "changed": "default/a", "endpoints": 2},
        line
        | {
            "added": f"{', '.join(f'default/n0{n}' for n in range(1, 9))} and 3 more",
            "removed": "default/a, default/c",
            "endpoints": 11,
        },
    ]


def fifo(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def long(path):
    with path.open("wb") as file:
        file.truncate(100 << 20)


def proc(path):
    path.symlink_to("/proc/kallsyms")


BAD = {
    "a FIFO": (fifo, "is not a regular file"),
    "/dev/zero": (endless, "is not a regular file"),
    "100 MiB": (long, "longer than 1048576 bytes"),
    "a file of /proc": (proc, "longer than 1048576 bytes|cannot be read|not valid"),
    "a directory": (lambda path: path.mkdir(), "is not a regular file"),
    "a dangling link": (lambda path: path.symlink_to("none"), "No such file"),
    "a loop of links": (lambda path: path.symlink_to(path), "Too many levels"),
    "a tag": (lambda path: path.write_text("endpoints: !!bool x"), "tags are not allowed"),
    "an empty number": (
        lambda path: path.write_text('endpoints: !!int ""'),
        "tags are not allowed",
    ),
    "a bomb": (
        lambda path: path.write_text("a: &a {x: y}\nb: {<<: [*a, *a]}"),
        "line 1, column 4: not valid YAML: anchors are not allowed",
    ),
    "nothing": (lambda path: path.write_text(""), "empty"),
}


@pytest.mark.parametrize(("make", "problem"), BAD.values(), ids=BAD)
async def test_whatever_the_file_becomes_the_last_valid_endpoints_stay(tmp_path, make, problem):
    place, good, bad = tmp_path / "now", tmp_path / "good", tmp_path / "bad"
    write(good, a="10.0.0.1:1")
    place.symlink_to(good)
    make(bad)
    with capture_logs() as logs:
        async with following(place) as told:
            told.take()
            (tmp_path / "next").symlink_to(bad)
            (tmp_path / "next").replace(place)
            await logged(logs, "endpoints_file.rejected")
            assert told.take() == []
            write(good, a="10.0.0.1:1", b="10.0.0.2:2")
            (tmp_path / "next").symlink_to(good)
            (tmp_path / "next").replace(place)
            assert await told.next(1) == [("up", "default/b", "10.0.0.2:2")]
            await logged(logs, "endpoints_file.recovered")
    assert [entry["event"] for entry in logs] == [
        "endpoints_file.rejected",
        "endpoints_file.recovered",
        "endpoints_file.changed",
    ]
    assert any(part in logs[0]["error"] for part in problem.split("|"))


async def test_a_large_change_is_applied_in_turns_with_others(path):
    async with following(path) as told:
        told.take()
        write(path, **{f"a{n}": f"10.0.0.{n % 250 + 1}:{n + 1}" for n in range(500)})
        most, before = 0, 0
        async with asyncio.timeout(10):
            while len(told.events) < 502:
                await asyncio.sleep(0)
                most, before = max(most, len(told.events) - before), len(told.events)
        assert most <= 16


async def test_an_event_that_fails_does_not_lose_those_after_it(path):
    told = Told()

    def apply(event):
        told(event)
        if isinstance(event, EndpointUpserted) and event.endpoint.name == "c":
            raise ValueError("c")

    source = EndpointsFile(path, apply, poll=POLL)
    await source.load()
    told.take()
    write(path, c="10.0.0.3:3", d="10.0.0.4:4")
    with pytest.raises(ValueError, match="c"):
        await asyncio.wait_for(source.run(), 5)
    assert told.take()[-1] == ("up", "default/c", "10.0.0.3:3")
    again = asyncio.create_task(source.run())
    assert await told.next(1) == [("up", "default/d", "10.0.0.4:4")]
    again.cancel()


SHORTAGE = """
import asyncio, os, resource, sys
from pathlib import Path
from structlog.testing import capture_logs
from epp.adapters.endpoints_file import EndpointsFile, ClusterNames

async def main(path):
    events = []
    source = EndpointsFile(Path(path), events.append, poll=0.005)
    await source.load()
    events.clear()
    writing = open(path, "w")
    following = asyncio.create_task(source.run())
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    held = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        pass
    writing.write("endpoints: [{name: late, address: 10.0.0.9, port: 9}]")
    writing.flush()
    with capture_logs() as logs:
        while not logs:
            await asyncio.sleep(0.005)
        print(logs[0]["event"], logs[0]["error"])
        for each in held:
            os.close(each)
        while not events:
            await asyncio.sleep(0.005)
    print(*(type(event).__name__ for event in events))
    following.cancel()

asyncio.run(asyncio.wait_for(main(sys.argv[1]), 10))
"""


def test_a_change_during_a_shortage_of_descriptors_is_read_after_it(path):
    write(path, a="10.0.0.1:1")
    child = [sys.executable, "-c", SHORTAGE, path]
    said = subprocess.run(child, capture_output=True, text=True, timeout=30, check=True)
    rejected, events = said.stdout.splitlines()
    assert rejected.startswith("endpoints_file.rejected ")
    assert rejected.endswith("Too many open files")
    assert events == "EndpointRemoved EndpointUpserted"


async def test_clusters_are_resolved_again_and_those_without_an_address_are_left_out(tmp_path):
    path, told, now = tmp_path / "endpoints.yaml", Told(), 0.0
    names = ClusterNames(30.0, lambda: now)
    write(path, here="localhost:1", lost="no-such-host.invalid:2")
    made = EndpointsFile(path, told, poll=POLL, names=names)
    with capture_logs() as logs:
        await made.load()
        (up, listed) = told.take()
        assert up[:2] == ("up", "default/here")
        assert up[2] in {"127.0.0.1:1", "[::1]:1"}
        assert listed == ("listed",)
        now = 30.0
        assert names.due()
        async with running(made.run()), asyncio.timeout(5):
            while names.due():
                await asyncio.sleep(POLL)
            assert told.take() == []
            write(path, there="10.0.0.3:3")
            changes = [("gone", "default/here"), ("up", "default/there", "10.0.0.3:3")]
            assert await told.next(2) == changes
            now = 60.0
            while names.due():  # a file without names, too, is read once in an interval
                await asyncio.sleep(POLL)
    assert told.take() == []
    assert [(each["event"], each["name"]) for each in logs if "name" in each] == [
        ("endpoints_file.unresolved", "no-such-host.invalid")
    ]


def test_a_slow_name_server_is_asked_again_an_interval_after_the_last_name():
    now = 0.0
    names = ClusterNames(30.0, lambda: now)
    names.begin()
    now = 40.0
    names("localhost", 1)
    assert not names.due()
