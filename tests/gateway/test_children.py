import asyncio
import os
import signal
import sys

import pytest

from epp.gateway.children import Child, Hooks
from epp.gateway.processes import ProcessDied

TALKER = """
import sys, time
for number in range(15_000):
    print("line", number, "x" * 80)
print("end", flush=True)
time.sleep(600)
"""
ENDING = "import sys; sys.exit(7)"
LASTING = "import time; print('up', flush=True); time.sleep(600)"


class Owner:
    """What a child has told."""

    def __init__(self):
        self.pids = []
        self.changes = []
        self.said = []
        self.lines = []

    @property
    def hooks(self):
        return Hooks(self.ready, self.changed, self.said.append, self.lines.append)

    async def ready(self, process):
        await process.before_exit(self.logged(process), "logged nothing", 30)
        self.pids.append(process.pid)

    async def logged(self, process):
        while not process.log_path.read_bytes():
            await asyncio.sleep(0.01)

    async def changed(self, up):
        self.changes.append(up)


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


def child(code, folder, owner):
    return Child("child", [sys.executable, "-c", code], folder, owner.hooks)


async def test_a_child_that_ends_is_started_again(tmp_path):
    owner = Owner()
    kept = child(LASTING, tmp_path, owner)
    await kept.start()
    running = asyncio.create_task(kept.run())
    os.kill(owner.pids[0], signal.SIGKILL)
    await until(lambda: len(owner.pids) == 2)
    await until(lambda: len(owner.said) == 2)
    assert owner.changes == [True, False, True]
    assert owner.said == [
        "child ended with exit code -9; it is started again",
        "child is back",
    ]
    running.cancel()
    await kept.stop(0)


async def test_one_that_does_not_start_is_told(tmp_path):
    owner = Owner()
    with pytest.raises(ProcessDied, match="child ended with exit code 7"):
        await child(ENDING, tmp_path, owner).start()
    assert owner.changes == []


async def test_every_line_is_passed_on_and_the_log_stays_short(tmp_path):
    owner = Owner()
    talking = child(TALKER, tmp_path, owner)
    await talking.start()

    def ended():
        talking.pass_on()
        return owner.lines[-1:] == ["end"]

    await until(ended)
    assert owner.lines == [*(f"line {number} {'x' * 80}" for number in range(15_000)), "end"]
    assert (tmp_path / "child.log").stat().st_size < 1 << 20
    await talking.stop(0)
