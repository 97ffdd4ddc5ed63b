import asyncio
import os
import signal
import sys

import pytest

from epp.gateway.children import Child, Hooks
from epp.gateway.processes import ProcessDied
from tests.tasks import until

# Tests end these programs: 600 s bound their life if a test fails.
TALKER = """
import sys, time
for number in range(15_000):
    print("line", number, "x" * 80)
print("end", flush=True)
time.sleep(600)
"""
ENDING = "import sys; sys.exit(7)"
SILENT = "import time; time.sleep(600)"
LASTING = "import time; print('up', flush=True); time.sleep(600)"


class Owner:
    """What a child has told."""

    def __init__(self, limit=30):
        self.limit = limit
        self.pids = []
        self.changes = []
        self.said = []
        self.lines = []

    @property
    def hooks(self):
        return Hooks(self.ready, self.changed, self.said.append, self.lines.append)

    async def ready(self, process):
        await process.before_exit(self.logged(process), "logged nothing", self.limit)
        self.pids.append(process.pid)

    async def logged(self, process):
        while not process.log_path.read_bytes():
            await asyncio.sleep(0.01)

    async def changed(self, up):
        self.changes.append(up)


def child(code, folder, owner):
    return Child("child", [sys.executable, "-c", code], folder, owner.hooks)


async def test_a_child_that_ends_is_started_again(tmp_path):
    owner = Owner()
    kept = child(LASTING, tmp_path, owner)
    await kept.start()
    running = asyncio.create_task(kept.run())
    kept.kill()
    await until(lambda: len(owner.pids) == 2)
    await until(lambda: len(owner.said) == 2)
    assert owner.changes == [True, False, True]
    assert owner.said == [
        "child ended with exit code -9; it is started again",
        "child is back",
    ]
    assert not kept.ended
    running.cancel()
    await kept.stop(0)
    assert owner.lines == ["up", "up"]  # the log of the first one is gone


async def test_one_that_cannot_be_started_again_says_why_until_it_can(tmp_path):
    owner, broken = Owner(), tmp_path / "broken"
    check = f"import os, sys; os.path.exists({str(broken)!r}) and sys.exit(7); "
    kept = child(check + LASTING, tmp_path, owner)
    await kept.start()
    running = asyncio.create_task(kept.run())
    broken.touch()
    os.kill(owner.pids[0], signal.SIGKILL)
    await until(lambda: len(owner.said) >= 3)
    broken.unlink()
    await until(lambda: owner.said[-1] == "child is back")
    assert owner.said[:3] == [
        "child ended with exit code -9; it is started again",
        "child ended with exit code 7 (and logged nothing)",
        "child ended with exit code 7; it is started again",
    ]
    assert (owner.changes[:3], owner.changes[-1]) == ([True, False, False], True)
    running.cancel()
    await kept.stop(0)


@pytest.mark.parametrize(
    ("code", "limit", "told"),
    [(ENDING, 30, "child ended with exit code 7"), (SILENT, 0, "child logged nothing within 0 s")],
)
async def test_one_that_does_not_start_is_told_and_ended(code, limit, told, tmp_path):
    owner = Owner(limit)
    kept = child(code, tmp_path, owner)
    with pytest.raises(ProcessDied, match=told):
        await kept.start()
    assert owner.changes == []
    assert kept._process is not None
    assert not kept._process.alive()


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


async def test_a_log_is_passed_on_in_whole_lines_and_emptied_only_when_long(tmp_path):
    owner, path = Owner(), tmp_path / "child.log"
    kept = child(LASTING, tmp_path, owner)
    await kept.start()
    long = "x" * (1 << 20)
    for said, lines, kept_bytes in (
        (b"", ["up"], 3),
        (b"", [], 3),
        (b"\xff\nhalf", ["\ufffd"], 9),
        (f" a line\n{long}\nhalf".encode(), ["half a line", long], 22 + len(long)),
        (b" of another\n", ["half of another"], 0),
        (b"after\n", ["after"], 6),
    ):
        with path.open("ab") as log:
            log.write(said)
        kept.pass_on()
        assert (owner.lines, path.stat().st_size) == (lines, kept_bytes)
        owner.lines.clear()
    path.unlink()
    kept.pass_on()
    await kept.stop(0)
    assert owner.lines == []
