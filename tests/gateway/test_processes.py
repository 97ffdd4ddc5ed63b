import asyncio
import errno
import itertools
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from epp.gateway import processes
from epp.gateway.processes import ProcessDied, free_port, spawn

# Programs live ten minutes unless they are ended, so none outlives a test that fails for long.
FAMILY = """
import json, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("not json")
print(json.dumps({"event": "listening", "child": child.pid}), flush=True)
time.sleep(600)
"""
STUBBORN = """
import json, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(json.dumps({"event": "listening"}), flush=True)
time.sleep(600)
"""
TALKER = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("x" * (1 << 20), "and that is all")))
print("{}", '{"event": "later"}', sep="\\n", flush=True)
time.sleep(600)
"""
SHORT = """
import os, sys
print(*range(20), os.environ["KEPT"], os.environ["SAID"], sep="\\n", flush=True)
sys.stdout.buffer.write(bytes([255]))
"""
LONG_LINE = """
import json, time
print("x" * (3 << 20) + "!")
print(json.dumps({"event": "listening"}), flush=True)
time.sleep(600)
"""
SURVIVED = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
sys.exit(7)
"""
FULL_DISK = """
import asyncio, pathlib, resource, sys
from epp.gateway.processes import spawn

async def main():
    code = "print('x' * 8192, flush=True); print('{}', flush=True); import time; time.sleep(600)"
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
    child = await spawn("child", [sys.executable, "-c", code], log_dir=pathlib.Path(sys.argv[1]))
    await child.wait_ready_line(60)
    await child.stop()
    print('{"event": "stopped"}', flush=True)

asyncio.run(main())
"""
PARENT = """
import asyncio, pathlib, sys
from epp.gateway.processes import spawn

async def main():
    argv = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = await spawn("orphan", argv, log_dir=pathlib.Path(sys.argv[1]))
    print('{"child": %d}' % child.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def python(code, *arguments):
    return [sys.executable, "-c", code, *arguments]


async def gone(pid):
    """Wait until no process has this id (a zombie that init has yet to reap counts as gone)."""
    async with asyncio.timeout(20):
        while True:
            try:
                with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - procfs, read at once
                    if stat.read().rpartition(")")[2].split()[0] == "Z":
                        return True
            except FileNotFoundError:
                return True
            await asyncio.sleep(0.01)


async def test_the_first_json_line_is_the_ready_line(tmp_path):
    process = await spawn("family", python(FAMILY), log_dir=tmp_path)
    line = await process.wait_ready_line(60)
    assert line["event"] == "listening"
    assert process.alive()
    await process.stop()
    assert "not json" in process.log_path.read_text()


async def test_stop_ends_the_whole_group(tmp_path):
    process = await spawn("family", python(FAMILY), log_dir=tmp_path)
    line = await process.wait_ready_line(60)
    await process.stop()
    assert not process.alive()
    assert await gone(line["child"])


async def test_stop_kills_what_ignores_sigterm(tmp_path):
    process = await spawn("stubborn", python(STUBBORN), log_dir=tmp_path)
    await process.wait_ready_line(60)
    await process.stop(grace=0.05)
    assert await process.wait_exit(1) == -signal.SIGKILL


async def test_a_death_is_told_with_the_last_log_lines(tmp_path):
    code = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(7)"
    process = await spawn("short", python(code), log_dir=tmp_path)
    with pytest.raises(ProcessDied) as caught:
        await process.wait_http("http://127.0.0.1:9/", 10)
    await process.stop()
    message = str(caught.value)
    assert "short ended with exit code 7" in message
    assert {"  one", "  two"} <= set(message.splitlines())
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_what_is_told_of_a_death_is_the_end_of_its_own_log(tmp_path, monkeypatch):
    (tmp_path / "short.log").write_text("earlier\n")
    monkeypatch.setenv("KEPT", "kept")
    monkeypatch.setenv("SAID", "before")
    process = await spawn("short", python(SHORT), log_dir=tmp_path, env={"SAID": "said"})
    with pytest.raises(ProcessDied) as caught:
        await process.watch()
    await process.stop()
    told = [*map(str, range(8, 20)), "kept", "said", "\ufffd"]
    assert str(caught.value).split("\n  ") == ["short ended with exit code 0", *told]
    assert process.log_path.read_bytes().startswith(b"0\n")


async def test_what_is_said_at_the_end_is_logged(tmp_path):
    process = await spawn("talker", python(TALKER), log_dir=tmp_path)
    assert await process.wait_ready_line(60) == {}
    await process.stop()
    assert process.log_path.read_text().endswith(f"{'x' * (1 << 20)} and that is all\n")


async def test_the_status_that_is_waited_for_counts(tmp_path):
    codes = [503, 200, 200, 503]

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 {codes.pop(0)} said\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())
        writer.close()

    process = await spawn("waited", python("import time; time.sleep(600)"), log_dir=tmp_path)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await process.wait_http(url, 10)
        assert codes == [200, 503]
        await process.wait_http(url, 10, 503)
    await process.stop()
    assert codes == []


async def test_a_line_of_any_length_is_logged_whole(tmp_path):
    process = await spawn("long", python(LONG_LINE), log_dir=tmp_path)
    await process.wait_ready_line(60)
    await process.stop()
    assert process.log_path.read_text().splitlines()[0] == "x" * (3 << 20) + "!"


async def test_a_full_disk_stops_no_child(tmp_path):
    argv = python(FULL_DISK, str(tmp_path))
    parent = await spawn("parent", argv, log_dir=tmp_path, env={"PYTHONPATH": str(Path.cwd())})
    assert await parent.wait_ready_line(60) == {"event": "stopped"}
    await parent.stop()


async def test_a_death_is_told_while_its_own_children_still_run(tmp_path):
    process = await spawn("parent", python(SURVIVED), log_dir=tmp_path)
    with pytest.raises(ProcessDied, match="parent ended with exit code 7"):
        async with asyncio.timeout(60):
            await process.watch()
    await process.stop()


async def test_a_child_that_cannot_be_started_leaves_nothing_open(tmp_path):
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names
    with pytest.raises(FileNotFoundError):
        await spawn("lost", python(""), log_dir=tmp_path / "missing")
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 - as above


async def test_a_death_before_the_ready_line_is_told(tmp_path):
    process = await spawn("mute", python("print('hello')"), log_dir=tmp_path)
    with pytest.raises(ProcessDied, match=r"(?s)mute ended with exit code 0.*hello"):
        await process.wait_ready_line(60)
    await process.stop()


async def test_a_child_that_says_nothing_in_time_is_told(tmp_path):
    process = await spawn("slow", python("import time; time.sleep(600)"), log_dir=tmp_path)
    with pytest.raises(ProcessDied, match=r"slow printed no JSON within 0\.05 s"):
        await process.wait_ready_line(0.05)
    for end in (process.watch(), process.wait_exit(60)):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await end
    await process.stop()  # which waits for its end, too


async def test_a_program_that_is_missing_is_told(tmp_path):
    process = await spawn("ghost", ["/no/such/program"], log_dir=tmp_path)
    with pytest.raises(ProcessDied, match="cannot run /no/such/program: No such file"):
        await process.wait_ready_line(60)
    await process.stop()


async def test_children_die_with_a_parent_that_is_killed(tmp_path):
    argv = python(PARENT, str(tmp_path))
    parent = await spawn("parent", argv, log_dir=tmp_path, env={"PYTHONPATH": str(Path.cwd())})
    line = await parent.wait_ready_line(60)
    os.kill(parent.pid, signal.SIGKILL)
    assert await gone(line["child"])
    await parent.stop()


def test_a_port_that_is_taken_is_passed_over(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(processes, "_next_ports", itertools.repeat(port))
        assert free_port() not in {*range(1024), port}


def test_no_port_is_free_at_an_address_of_another_machine():
    with pytest.raises(OSError) as raised:  # noqa: PT011 - see below
        free_port("192.0.2.1")
    assert raised.value.errno == errno.EADDRNOTAVAIL


def test_free_ports_differ_before_anybody_listens():
    ports = [free_port() for _ in range(1000)]
    assert len(set(ports)) == len(ports)
