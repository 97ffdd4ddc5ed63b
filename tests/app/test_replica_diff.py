"""What two replicas believe, asked of both and shown side by side."""

import asyncio
import sys

import pytest

from epp.app.replicas.diff import compare
from tests.app.replica_rig import HERE, SECRET, heard, serve_many, settled, started, two, unheard
from tests.protocol.replicas.pair import held
from tests.tasks import until

pytestmark = pytest.mark.usefixtures("digests_when_they_are_wanted")


async def epp_replicas_diff(folder, *ports, pool="pool", secret=SECRET, timeout="10s"):
    (folder / "secret").write_bytes(secret)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "replicas", "diff"),
        *(f"{HERE}:{port}" for port in ports),
        *("--hash-secret-file", str(folder / "secret"), "--pool-name", pool),
        f"--timeout={timeout}",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    return process.returncode, out.decode().splitlines(), errors.decode()


async def test_replicas_that_agree_and_then_do_not(tmp_path):
    async with two() as (one, other):
        await settled(one, other)
        serve_many(one)
        await until(lambda: held(one) == held(other) and held(one)["default/pod-0"])
        status, lines, _ = await epp_replicas_diff(tmp_path, one.port, other.port)
        blocks = str(len(held(one)["default/pod-0"]))
        assert (status, lines[-1]) == (0, "0 of 2 endpoints differ")
        assert lines[1].split() == ["default/pod-0", blocks, blocks, "0", "0"]
        unheard(one)
        serve_many(one, seed="lost")
        heard(one)
        status, lines, _ = await epp_replicas_diff(tmp_path, one.port, other.port)
        more = str(len(held(one)["default/pod-0"] - held(other)["default/pod-0"]))
        assert (status, lines[-1]) == (1, "1 of 2 endpoints differ")
        assert lines[1].split()[3:] == [more, "0", "differs"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"pool": "another"}, "does not answer within 1 s: is --pool-name the name of its pool?"),
        ({"secret": b"another secret of a fleet"}, "does not accept the secret"),
    ],
)
async def test_why_a_replica_does_not_answer_is_said(tmp_path, given, problem):
    async with started() as one:
        status, lines, errors = await epp_replicas_diff(
            tmp_path, one.port, one.port, timeout="1s", **given
        )
    assert (status, lines) == (2, [])
    assert f"{HERE}:{one.port} " in errors
    assert problem in errors


async def test_a_port_at_which_nobody_listens_is_said(tmp_path):
    async with started() as one:
        port = one.port
    status, _, errors = await epp_replicas_diff(tmp_path, port, port, timeout="1s")
    assert status == 2
    assert f"{HERE}:{port} cannot be reached: " in errors


async def test_a_replica_that_has_just_started_is_not_said_to_differ(tmp_path):
    async with two() as (one, other):
        await settled(one, other)
        serve_many(one)
        await until(lambda: held(one) == held(other))
        other.replicas._writer.settled = False
        status, lines, errors = await epp_replicas_diff(tmp_path, one.port, other.port)
    assert (status, lines) == (2, [])
    assert f"{HERE}:{other.port} has just started" in errors


async def test_two_starts_of_an_engine_differ_whatever_they_hold(tmp_path):
    async with two() as (one, other):
        await settled(one, other)
        for number, each in enumerate((one, other)):
            each.report("pod-0", started_at=1000.0 + number)
        status, lines, _ = await epp_replicas_diff(tmp_path, one.port, other.port)
        assert status == 1
        assert "another start" in lines[1]


def test_an_endpoint_that_one_does_not_know_has_nothing_there():
    found = compare("pod", None, None)
    assert (found.first, found.second, found.differs) == (0, 0, False)
