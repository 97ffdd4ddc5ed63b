import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

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
    await process.stop()


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


def test_free_ports_differ_before_anybody_listens():
    ports = [free_port() for _ in range(1000)]
    assert len(set(ports)) == len(ports)
