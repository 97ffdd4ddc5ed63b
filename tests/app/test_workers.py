"""`epp serve --workers`: processes that serve one port, and their pages."""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from pathlib import Path

import aiohttp
import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from epp.gateway.processes import free_port
from tests.adapters.ext_proc_peer import answered
from tests.native.built import needs_native
from tests.processes import HERE as LISTEN
from tests.processes import picker, said

pytestmark = needs_native

HERE = "127.0.0.1"
WORDS = ("--endpoints-file=endpoints.yaml", "--secure-serving=false", "--zap-encoder=json")
OPENMETRICS = {"Accept": "application/openmetrics-text; version=1.0.0"}


@pytest.fixture
def folder(tmp_path):
    lines = [f"- {{name: pod-{n}, address: 127.0.0.{n + 1}, port: 1}}\n" for n in range(2)]
    (tmp_path / "endpoints.yaml").write_text("endpoints:\n" + "".join(lines))
    (tmp_path / "secret").write_text("a secret of sixteen bytes and more")
    return tmp_path


@contextlib.asynccontextmanager
async def connected(port, count):
    """Connections of their own to one port."""
    async with contextlib.AsyncExitStack() as stack:
        separate = [("grpc.use_local_subchannel_pool", 1)]
        yield [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(f"{HERE}:{port}", options=separate)
            )
            for _ in range(count)
        ]


async def values(session, url, **headers):
    """The samples of a metrics page, added up by their names."""
    async with session.get(url, headers=headers) as response:
        assert response.status == 200
        page = await response.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0) + sample.value
    return found


async def becomes(session, url, wanted, name):
    async with asyncio.timeout(30):
        while (await values(session, url)).get(name) != wanted:
            await asyncio.sleep(0.05)


async def test_two_workers_are_one_picker(folder):
    async with (
        picker((*WORDS, "--workers=2", "--log-level=debug"), folder) as lines,
        aiohttp.ClientSession() as session,
    ):
        serving = await said(lines, "serving")
        assert serving["workers"] == 2
        async for line in lines:
            if line["event"] == "ready" and "worker" not in line:
                break
        url = f"http://{HERE}:{serving['metrics_port']}"
        async with grpc.aio.insecure_channel(f"{HERE}:{serving['health_port']}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest(service="readiness")
            assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        async with connected(serving["grpc_port"], 2) as channels:
            chosen = [await answered(channels[0], number) for number in range(8)]
            await becomes(session, f"{url}/metrics", 16, "warmpick_replica_facts_applied_total")
            # By chance all eight would go to the same pods in one of 256 runs.
            assert [await answered(channels[1], number) for number in range(8)] == chosen
        deciding = set()
        for _ in range(16):
            deciding.add((await said(lines, "exchange.decided"))["worker"])
        assert deciding == {0, 1}
        await becomes(session, f"{url}/metrics", 16, "llm_d_epp_request_total")
        found = await values(session, f"{url}/metrics")
        assert found["llm_d_epp_request_duration_seconds_count"] == 16
        assert found["llm_d_epp_info"] == 1
        assert sum(each for name, each in found.items() if name.endswith("_dropped_total")) == 0
        async with session.get(f"{url}/metrics", headers=OPENMETRICS) as response:
            assert response.content_type == "application/openmetrics-text"
            page = await response.text()
        assert page.endswith("# EOF\n")
        assert page.count("# EOF") == 1
        await pages(session, url)


async def pages(session, url):
    """Look at the pages of the operators' port."""
    for path in ("/readyz", "/healthz", "/console", "/debug/prefixes", "/debug/plugins/state"):
        async with session.get(url + path) as response:
            assert response.status == 200, path
    for path, status in (
        ("/debug/decisions?request=x&since=1", 400),
        ("/debug/decisions?limit=0", 400),
        ("/debug/console?nonsense=1", 400),
        ("/debug/pprof/goroutine?worker=1", 200),
        ("/debug/pprof/goroutine?worker=2", 400),
        ("/debug/pprof/profile?seconds=never", 400),
        ("/debug/elsewhere", 404),
    ):
        async with session.get(url + path) as response:
            assert response.status == status, path
    async with session.get(f"{url}/debug/decisions?limit=100") as response:
        page = await response.json()
    assert [each["number"] for each in page["decisions"]] == list(range(1, 17))
    async with session.get(f"{url}/debug/decisions?since=14") as response:
        page = await response.json()
    assert [each["number"] for each in page["decisions"]] == [15, 16]
    async with session.get(f"{url}/debug/decisions?since=0&limit=2") as response:
        page = await response.json()
    assert [each["number"] for each in page["decisions"]] == [1, 2]
    assert page["last"] == 2


async def test_no_count_goes_back_where_a_worker_is_killed(folder):
    async with (
        picker((*WORDS, "--workers=2"), folder) as lines,
        aiohttp.ClientSession() as session,
    ):
        serving = await said(lines, "serving")
        await said(lines, "ready")
        url = f"http://{HERE}:{serving['metrics_port']}"
        async with connected(serving["grpc_port"], 2) as channels:
            for number in range(4):
                await answered(channels[number % 2], number)
        await becomes(session, f"{url}/metrics", 4, "llm_d_epp_request_total")
        async with session.get(f"{url}/debug/decisions") as response:
            assert (await response.json())["last"] == 4
        (victim, other) = _workers(serving)
        other.suspend()  # what does not answer counts as it last did
        async with session.get(f"{url}/debug/decisions") as response:
            assert (await response.json())["last"] == 4
        other.resume()
        victim.kill()
        assert (await said(lines, "worker.ended"))["status"] == 128 + signal.SIGKILL
        await said(lines, "worker.serving")
        assert (await values(session, f"{url}/metrics"))["llm_d_epp_request_total"] == 4
        async with connected(serving["grpc_port"], 1) as channels:
            await answered(channels[0], 9)
        await becomes(session, f"{url}/metrics", 5, "llm_d_epp_request_total")
        async with session.get(f"{url}/debug/decisions?limit=100") as response:
            assert (await response.json())["last"] == 5


async def test_workers_of_several_pods_are_replicas_of_each_other(folder):
    """Of two pods on this machine, each with the addresses of all."""
    bases = _two_bases()
    names = ",".join(f"{HERE}:{base}" for base in bases)
    words = (*WORDS, "--workers=2", "--hash-secret-file=secret", f"--replicas={names}")
    async with contextlib.AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession())
        urls = []
        for base in bases:
            flags = (*words, f"--replicas-port={base}")
            lines = await stack.enter_async_context(picker(flags, folder))
            urls.append(f"http://{HERE}:{(await said(lines, 'serving'))['metrics_port']}/metrics")
        for url in urls:
            await becomes(session, url, 3, "warmpick_replicas_heard")
            # A worker's own port, and its sibling's, are left out once they are heard.
            await becomes(session, url, 3, "warmpick_replicas_known")


async def test_nothing_is_left(folder):
    """Of a process that is killed: its workers drain, and remove their sockets."""
    async with picker((*WORDS, "--workers=2"), folder, TMPDIR=str(folder)) as lines:
        serving = await said(lines, "serving")
        await said(lines, "ready")
        assert list(folder.glob("warmpick-workers-*"))
        workers = _workers(serving)
        workers[0].parent().kill()
        for _ in workers:
            await said(lines, "stopped")
        gone, _ = await asyncio.to_thread(psutil.wait_procs, workers, 30)
        assert len(gone) == len(workers)
        assert not list(folder.glob("warmpick-workers-*"))


def _workers(serving):
    """The workers of the picker that listens at a port."""
    for child in psutil.Process().children():
        for each in child.net_connections():
            if each.laddr.port == serving["metrics_port"]:
                return child.children()
    raise AssertionError


def _two_bases():
    """Two ports with a free one after each."""
    first = free_port()
    while abs((second := free_port()) - first) <= 2:
        pass
    return first, second


async def started(folder, *flags, **environ):
    """Run a picker to its end; return its status, and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "serve", "--workers=2", *flags, *LISTEN),
        cwd=folder,
        env=os.environ | {"KUBECONFIG": str(folder / "kubeconfig"), **environ},
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        _, said_last = await process.communicate()
    return process.returncode, said_last.decode()


@pytest.mark.parametrize(
    ("flag", "problem"),
    [
        ("--endpoints-file=nowhere.yaml", "--endpoints-file nowhere.yaml: cannot be read: No such"),
        ("--metrics-cert-dir=nowhere", "--metrics-cert-dir nowhere/tls.key: cannot be read: No"),
    ],
)
async def test_if_it_cannot_start_the_process_ends_and_leaves_nothing(folder, flag, problem):
    with tempfile.TemporaryDirectory() as place:  # its path is short enough for sockets
        status, errors = await started(folder, *WORDS, flag, TMPDIR=place)
        assert not list(Path(place).iterdir())
    assert status == 2
    assert f"epp: {problem}" in errors


async def test_a_place_for_sockets_whose_path_is_too_long_is_said(folder):
    place = folder / ("long" * 20)
    place.mkdir()
    status, errors = await started(folder, *WORDS, TMPDIR=str(place))
    assert status == 2
    assert f"epp: the path of the folder for temporary files, {place}, is too long" in errors
    assert not list(place.iterdir())
