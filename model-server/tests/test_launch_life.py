"""Readiness, liveness and the end of a server: the launcher, with the simulator as its engine."""

import asyncio
import json
import os
import signal

import aiohttp
import pytest

from tests.held_port import held_port
from tests.kubeapi.authority import Authority

from .launched import SIMULATED, BeforeStandIn, Launched, ask, eventually

CHAT = {"model": "base", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 30}


def phase(port):
    return json.loads(ask(port, "/status")[1])["phase"]


@pytest.fixture
def launch(tmp_path):
    def start(*flags, **variables):
        common = ["--served-model-name=base", "--log-file", tmp_path / "engine.log"]
        more = os.environ | variables if variables else {}
        return Launched(SIMULATED, tmp_path / "told", *common, *flags, **more)

    return start


@pytest.fixture
def probe_port():
    """A port of this test alone, which it asks before the launcher says where it is."""
    with held_port() as port:
        yield port


def test_not_ready_but_alive_until_the_model_is_served(tmp_path, probe_port):
    flags = ["--probe-port", probe_port]
    with BeforeStandIn(tmp_path / "engine.log", "never-healthy", *flags) as launcher:
        eventually(lambda: ask(probe_port, "/live")[0] == 200)
        status, said = ask(probe_port, "/ready")
        assert (status, json.loads(said)) == (503, {"ok": False, "reason": "the server is loading"})
        launcher.process.terminate()
        assert launcher.end() == (0, "", "")
    assert ask(probe_port, "/live") == (0, b"")


def test_what_still_loads_has_nothing_to_leave(tmp_path, probe_port):
    flags = ["--probe-port", probe_port, "--leave-seconds", 300]
    with BeforeStandIn(tmp_path / "engine.log", "never-healthy", *flags) as launcher:
        eventually(lambda: ask(probe_port, "/live")[0] == 200)
        launcher.process.terminate()
        assert launcher.end() == (0, "", "")


def test_an_engine_that_answers_over_tls_is_asked_over_tls(tmp_path):
    issued = Authority().issue("vllm")
    for name, text in (("cert", issued.certificate), ("key", issued.key)):
        (tmp_path / name).write_bytes(text)
    tls = ["--ssl-certfile", tmp_path / "cert", "--ssl-keyfile", tmp_path / "key"]
    flags = ["--host", "localhost", "--start-seconds", 20, "--probe-port", 0, "--", *tls]
    with BeforeStandIn(tmp_path / "engine.log", "serves", *flags) as launcher:
        assert ask(launcher.listening()["probe_port"], "/live") == (200, b'{"ok":true}')


def test_ready_when_the_model_is_listed(launch):
    with launch("--probe-port", 0) as launcher:
        port = launcher.listening()["probe_port"]
        assert ask(port, "/ready") == (200, b'{"ok":true}')
        assert ask(port, "/live") == (200, b'{"ok":true}')
        assert phase(port) == "serving"
        assert ask(port, "/elsewhere")[0] == 404


def test_not_ready_where_another_model_is_listed(launch):
    with launch("--probe-port", 0, "--", "--served-model-name", "other") as launcher:
        port = launcher.listening()["probe_port"]
        status, said = ask(port, "/ready")
        assert (status, json.loads(said)["reason"]) == (503, "the engine does not list base")
        assert ask(port, "/live")[0] == 200


def test_an_engine_that_hangs_is_neither_ready_nor_alive(launch):
    with launch("--probe-port", 0) as launcher:
        port = launcher.listening()["probe_port"]
        engine = launcher.engine()
        engine.suspend()
        for path in ("/ready", "/live"):
            status, said = ask(port, path)
            assert status == 503
            assert json.loads(said)["reason"].startswith("/health: ")
        engine.resume()
        assert ask(port, "/ready")[0] == 200


async def test_no_request_fails_when_a_server_leaves_under_traffic(launch):
    with launch("--probe-port", 0, "--leave-seconds", 5, "--drain-seconds", 20) as launcher:
        line = launcher.listening()
        url, probes = (f"http://127.0.0.1:{line[key]}" for key in ("port", "probe_port"))
        answers, gone = [], asyncio.Event()

        async def watch(session):
            """What a router does: ask for readiness, and send nothing after the first no."""
            while True:
                async with session.get(f"{probes}/ready") as response:
                    if response.status != 200:
                        gone.set()
                        return (await response.json())["reason"]
                await asyncio.sleep(0.05)

        async def client(session):
            while not gone.is_set():
                async with session.post(f"{url}/v1/chat/completions", json=CHAT) as response:
                    answers.append((response.status, (await response.json())["usage"]))

        async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(client(session))
            async with asyncio.timeout(20):
                while len(answers) < 16:
                    await asyncio.sleep(0.01)
            watching = group.create_task(watch(session))
            launcher.process.terminate()
        assert watching.result() == "the server is leaving"
        assert {status for status, _ in answers} == {200}
        assert {usage["completion_tokens"] for _, usage in answers} == {30}
        assert launcher.end()[0] == 0


async def test_a_running_stream_ends_as_it_should_and_a_late_request_is_served(launch):
    with launch("--leave-seconds", 5, "--drain-seconds", 20) as launcher:
        url = f"http://127.0.0.1:{launcher.listening()['port']}/v1/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(url, json=CHAT | {"max_tokens": 100, "stream": True}) as stream,
        ):
            await stream.content.readline()
            launcher.process.terminate()
            async with session.post(url, json=CHAT) as late:
                assert late.status == 200
            assert (await stream.text()).strip().endswith("data: [DONE]")
        assert launcher.end()[0] == 0


@pytest.mark.parametrize(
    ("first", "second", "status"),
    [(signal.SIGTERM, signal.SIGTERM, 0), (signal.SIGINT, None, 130)],
)
def test_who_is_in_a_hurry_does_not_wait_for_routers(launch, first, second, status):
    with launch("--probe-port", 0, "--leave-seconds", 300) as launcher:
        port = launcher.listening()["probe_port"]
        launcher.process.send_signal(first)
        if second is not None:
            eventually(lambda: phase(port) == "leaving")
            launcher.process.send_signal(second)
        assert launcher.end()[0] == status


def test_an_engine_that_dies_while_leaving_is_not_waited_for(launch):
    with launch("--probe-port", 0, "--leave-seconds", 300) as launcher:
        port = launcher.listening()["probe_port"]
        engine = launcher.engine()
        launcher.process.terminate()
        eventually(lambda: phase(port) == "leaving")
        engine.kill()
        assert launcher.end()[0] == 0


def test_a_taken_probe_port_is_said_at_once(launch):
    with launch("--probe-port", 0) as launcher:
        taken = launcher.listening()["probe_port"]
        with launch("--probe-port", taken) as second:
            status, output, errors = second.end()
    assert (status, output) == (1, "")
    assert "cannot start" in errors


def test_a_node_that_works_for_another_is_ready_without_http_and_outlasts_it(tmp_path, probe_port):
    nodes = {"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1", "LWS_LEADER_ADDRESS": "leader"}
    log, flags = tmp_path / "engine.log", ["--probe-port", probe_port]
    with BeforeStandIn(log, "serves", *flags, **(os.environ | nodes)) as launcher:
        eventually(lambda: ask(probe_port, "/ready")[0] == 200)
        engine = launcher.family()[0]
        launcher.process.terminate()
        eventually(lambda: phase(probe_port) == "leaving")
        assert engine.is_running()
        engine.terminate()  # as the leader's end ends it
        assert launcher.end() == (0, "", "")
