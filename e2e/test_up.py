"""One command in front of two model servers: affinity, failures, the end."""

import asyncio
import collections
import contextlib
import json
import os
import signal
import stat
import sys
import tempfile
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from e2e.corridor import CHAT, SERVER, START_SECONDS, chat, quiet_port, until
from e2e.from_nothing import up
from e2e.serving import serving
from epp.gateway.processes import spawn
from tests.gateway.test_processes import gone

SIMULATOR = (sys.executable, "-m", "model_server.simulator", "--port", "0", "--faults")
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
UNANSWERED = b"before headers. reset reason: connection termination"
"""What Envoy says of a server that had the whole request, and went before it answered."""
READY = "llm_d_epp_ready_endpoints"
WORKERS = 8
DOSSIERS = 16
"""As the first of each goes to either by chance, all go to one once in 32,768 runs."""


class Servers:
    """Two simulated model servers, by name."""

    def __init__(self, folder):
        self.folder = folder
        self.processes = {}
        self.urls = {}

    async def start(self, name, *more):
        process = await spawn(name, (*SIMULATOR, "--name", name, *more), log_dir=self.folder)
        self.processes[name] = process
        line = await process.wait_ready_line(START_SECONDS)
        self.urls[name] = f"http://127.0.0.1:{line['port']}"

    async def stop(self):
        await asyncio.gather(*(each.stop(0) for each in self.processes.values()))


@contextlib.asynccontextmanager
async def simulated(folder, *names):
    """Run simulated model servers by these names, and those that are started meanwhile."""
    made = Servers(folder)
    try:
        await asyncio.gather(*map(made.start, names))
        yield made
    finally:
        await made.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def servers(tmp_path_factory):
    async with simulated(tmp_path_factory.mktemp("servers"), "a", "b") as both:
        yield both


async def ask(gateway, body):
    """Ask for a stream; give its status, its server and whether it came to its end."""
    async with gateway.client.post(gateway.url + CHAT, json=body) as response:
        text = await response.read()
        return response.status, response.headers.get(SERVER), text.endswith(b"data: [DONE]\n\n")


def dossier(number):
    return f"dossier {number}: " + f"a fact about {number}, and another one. " * 100


class Clients:
    """Clients who go on asking for streams until connections are refused."""

    def __init__(self, gateway, tokens=40):
        self.url = gateway.url + CHAT
        self.client = gateway.client
        self.tokens = tokens
        self.outcomes: collections.Counter[object] = collections.Counter()
        self.begun = asyncio.Event()
        self.done = False
        self.served = []

    async def run(self, number):
        body = chat(dossier(number), max_tokens=self.tokens, **USAGE)
        while not self.done:
            try:
                async with self.client.post(self.url, json=body) as response:
                    self.begun.set()
                    text = await response.read()
            except aiohttp.ClientConnectorError:
                return
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # On a connection that was closed meanwhile, or reset: it had not been accepted yet.
                self.outcomes["never begun"] += 1
                return
            except aiohttp.ClientError as error:
                self.outcomes[type(error).__name__] += 1
                continue
            whole = text.endswith(b"data: [DONE]\n\n")
            cut = not whole and (response.status == 200 or UNANSWERED in text)
            self.outcomes["cut" if cut else response.status] += 1
            self.served.append(response.headers.get(SERVER))

    async def answers(self, count):
        """Wait for so many answers more."""
        wanted = self.outcomes[200] + count

        async def enough():
            return self.outcomes[200] >= wanted

        await until(enough)


async def test_prompts_go_where_their_prefix_is_and_the_figures_say_so(servers, tmp_path):
    async with up(tmp_path, *servers.urls.values(), "--debug-headers") as gateway:
        assert "in front of 2 model servers (least-ttft)" in gateway.said
        assert gateway.said.count("sim-model") == 3  # with each server, and in the curl
        homes: dict[int, list[str]] = {number: [] for number in range(DOSSIERS)}
        for turn in range(3):
            past = [f"turn {each}" for each in range(2 * turn)]
            for number, home in homes.items():  # one by one: nothing but the cache decides
                body = chat(dossier(number), *past, **USAGE)
                status, server, whole = await ask(gateway, body)
                assert (status, whole) == (200, True)
                home.append(server)
        assert all(len(set(each)) == 1 for each in homes.values())
        assert {each[0] for each in homes.values()} == {"a", "b"}

        async def some_were_cached():  # the page is up to a second old
            return await gateway.metric("llm_d_epp_request_cached_tokens_sum") > 0

        await until(some_were_cached)
        assert await gateway.metric(READY) == 2
        await gateway.says("0 under way")
        assert "2 of 2 healthy" in gateway.said
        assert "dossier" not in gateway.said


async def test_a_server_that_is_killed_costs_only_what_it_had_begun(tmp_path):
    async with (
        simulated(tmp_path, "a", "b") as servers,
        up(tmp_path, *servers.urls.values()) as gateway,
        asyncio.TaskGroup() as group,
    ):
        clients = Clients(gateway)
        for number in range(WORKERS):
            group.create_task(clients.run(number))
        await clients.answers(2 * WORKERS)
        await servers.processes["a"].stop(0)
        await clients.answers(4 * WORKERS)
        await gateway.says(" is down: ")  # however it was seen: while it was polled, or after
        clients.done = True
    assert set(clients.served[-WORKERS:]) == {"b"}
    assert clients.outcomes["cut"] + clients.outcomes["ClientPayloadError"] <= WORKERS
    assert set(clients.outcomes) <= {200, "ClientPayloadError", "cut"}


async def test_without_its_picker_servers_take_turns_until_it_is_back(servers, tmp_path):
    async with up(tmp_path, *servers.urls.values()) as gateway:
        gateway.child("epp serve").kill()
        await gateway.says("picker ended with exit code -9; it is started again")

        async def answered():
            return (await ask(gateway, chat("hello", **USAGE)))[::2] == (200, True)

        await until(answered)
        for _ in range(4):
            assert await answered()
        await gateway.says("picker is back")
        assert await answered()

        async def picked():
            await answered()
            return await gateway.metric("warmpick_exchange_outcomes_total") > 0

        await until(picked)


async def test_one_recording_is_replayed_though_its_picker_was_killed(servers, tmp_path):
    folder = tmp_path / "recording"
    flags = (f"--record={folder}", "--observe-responses=all")
    async with up(tmp_path, *servers.urls.values(), *flags) as gateway:

        async def recorded():
            return await gateway.metric("warmpick_recorded_requests_total") >= 2

        for _ in range(2):
            assert (await ask(gateway, chat(dossier(1), max_tokens=5, **USAGE)))[::2] == (200, True)
        await until(recorded)
        gateway.child("epp serve").kill()
        await gateway.says("picker is back")

        async def recorded_again():
            await ask(gateway, chat(dossier(1), max_tokens=5, **USAGE))
            return await recorded()

        await until(recorded_again)
        gateway.interrupt()
        assert await gateway.exits() == 0
    salts = {part.name.split("-")[-2] for part in folder.iterdir()}
    assert len(salts) == 2
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    argv = ("-m", "epp", "replay", str(folder), "--policy=random", "--json", "--strict")
    replayed = await asyncio.create_subprocess_exec(
        sys.executable, *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, said = await replayed.communicate()
    assert replayed.returncode == 0, said
    (cell,) = json.loads(out)["cells"]
    assert cell["standings"]["random"]["requests"] >= 4
    assert cell["standings"]["random"]["unanswered"] == 0


async def test_a_picker_that_hangs_is_gone_past_and_killed(servers, tmp_path):
    async with up(tmp_path, *servers.urls.values()) as gateway:
        gateway.child("epp serve").suspend()

        async def answered():
            try:
                async with asyncio.timeout(1):
                    return (await ask(gateway, chat("hello", **USAGE)))[::2] == (200, True)
            except TimeoutError:
                return False

        await until(answered)
        assert "killed" not in gateway.said
        await gateway.says("the picker does not answer and is killed")
        await gateway.says("picker is back")
        await until(answered)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_drain_under_load_loses_nothing_that_had_begun(servers, tmp_path, number):
    async with up(tmp_path, *servers.urls.values()) as gateway:
        clients = Clients(gateway, tokens=200)
        async with asyncio.TaskGroup() as group:
            for each in range(WORKERS):
                group.create_task(clients.run(each))
            await clients.answers(WORKERS)
            children = [gateway.child(word).pid for word in ("epp serve", "envoy/_bin")]
            gateway.interrupt(number)
            assert await gateway.exits() == 0
        assert set(clients.outcomes) <= {200, "never begun"}
        assert [await gone(pid) for pid in children] == [True, True]
        assert list((tmp_path / "tmp").iterdir()) == []
        assert "draining" in gateway.said


async def test_python_files_of_the_current_folder_are_not_taken_for_its_own(
    servers, tmp_path, monkeypatch
):
    (tmp_path / "msgspec.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    async with up(tmp_path, *servers.urls.values()) as gateway:
        assert (await ask(gateway, chat("hello", **USAGE)))[0] == 200


async def test_a_second_signal_ends_the_drain(servers, tmp_path):
    async with up(tmp_path, *servers.urls.values()) as gateway:
        body = chat("hello", max_tokens=100_000, **USAGE)
        async with gateway.client.post(gateway.url + CHAT, json=body) as response:
            await response.content.readany()
            gateway.interrupt()
            await gateway.says("draining")
            assert gateway.process.alive()
            gateway.interrupt()
            assert await gateway.exits() == 130
            with pytest.raises(aiohttp.ClientError):
                await response.read()


async def test_a_drain_has_its_time(servers, tmp_path):
    async with up(tmp_path, *servers.urls.values(), "--drain-timeout=300ms") as gateway:
        body = chat("hello", max_tokens=100_000, **USAGE)
        async with gateway.client.post(gateway.url + CHAT, json=body) as response:
            await response.content.readany()
            gateway.interrupt()
            assert await gateway.exits() == 0
        assert "1 request was cut off after 0.3 s" in gateway.said


async def test_nothing_outlives_a_parent_that_is_killed(servers, tmp_path):
    async with up(tmp_path, *servers.urls.values()) as gateway:
        children = [gateway.child(word).pid for word in ("epp serve", "envoy/_bin")]
        os.kill(gateway.process.pid, signal.SIGKILL)
        assert [await gone(pid) for pid in children] == [True, True]


async def test_servers_that_are_down_are_said_and_taken_in_when_they_come(tmp_path):
    port = quiet_port()
    urls = f"http://127.0.0.1:{port}", "http://nowhere.invalid:8000"
    async with simulated(tmp_path) as servers, up(tmp_path, *urls) as gateway:
        assert "does not answer (Connection refused)" in gateway.said
        assert "nowhere.invalid cannot be resolved" in gateway.said
        assert (await ask(gateway, chat("hello")))[0] == 503
        await servers.start("a", f"--port={port}")
        await gateway.says("is up")
        assert (await ask(gateway, chat("hello", **USAGE))) == (200, "a", True)


async def test_servers_of_different_models_get_what_they_serve(tmp_path):
    async with simulated(tmp_path) as servers:
        for name in ("a", "b"):
            await servers.start(name, f"--served-model-name=model-{name}")
        async with up(tmp_path, *servers.urls.values()) as gateway:

            async def listed():
                async with gateway.client.get(gateway.url + "/v1/models") as response:
                    return [each["id"] for each in (await response.json())["data"]]

            assert await listed() == ["model-a", "model-b"]
            for name in "ab" * 10:
                found = await ask(gateway, chat("hello", **USAGE) | {"model": f"model-{name}"})
                assert found == (200, name, True)
            assert (await ask(gateway, chat("hello") | {"model": "model-c"}))[0] == 404
            await servers.processes["b"].stop(0)
            await until(lambda: is_listed(listed, ["model-a"]))


async def is_listed(listed, wanted):
    return await listed() == wanted


async def test_an_endpoints_file_is_followed(servers, tmp_path):
    path = tmp_path / "endpoints.yaml"
    ports = {name: url.rpartition(":")[2] for name, url in servers.urls.items()}

    def write(*names):
        entries = (f"- {{name: {each}, address: 127.0.0.1, port: {ports[each]}}}" for each in names)
        draft = Path(tempfile.mkstemp(dir=tmp_path)[1])
        draft.write_text("\n".join(["endpoints:", *entries]))
        draft.replace(path)

    write("a")
    async with up(tmp_path, f"--endpoints-file={path}", "--policy=round-robin") as gateway:
        assert "1 model server (round-robin)" in gateway.said

        async def answers_of(name):
            return (await ask(gateway, chat("hello", **USAGE)))[1] == name

        assert await answers_of("a")
        write("a", "b")
        await gateway.says("added b")
        await until(lambda: answers_of("b"))
        path.write_text("endpoints: [{name: oops")
        await gateway.says("endpoints")
        write("b")
        await gateway.says("removed a")
        await until(lambda: answers_of("b"))
        assert await answers_of("b")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a FIFO", "a directory"])
async def test_a_file_that_becomes_no_file_holds_up_nobody(make, servers, tmp_path):
    path, draft = tmp_path / "endpoints.yaml", tmp_path / "draft"
    ports = {name: url.rpartition(":")[2] for name, url in servers.urls.items()}

    def write(place, name):
        place.write_text(f"endpoints: [{{name: {name}, address: 127.0.0.1, port: {ports[name]}}}]")

    write(path, "a")
    async with up(tmp_path, f"--endpoints-file={path}", "--policy=round-robin") as gateway:

        async def answers_of(name):
            return (await ask(gateway, chat("hello", **USAGE)))[1] == name

        path.unlink()
        make(path)
        await gateway.says("it is not a regular file")
        assert await answers_of("a")
        write(draft, "b")
        path.rename(tmp_path / "away")
        draft.rename(path)
        await gateway.says("removed a")
        await until(lambda: answers_of("b"))
        path.unlink()
        make(path)

        async def said_again():
            return gateway.said.count("it is not a regular file") >= 2

        await until(said_again)
        gateway.interrupt()
        assert await gateway.exits() == 0


EVIL = "\x1b]0;owned\x07\x1b[31m\x9b2J\u202e\n2026-01-01T00:00:00 forged\x7f"


async def test_nothing_that_a_server_or_a_client_says_moves_the_terminal(tmp_path):
    async def answer(request):
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": EVIL}]})
        if request.path == "/metrics":
            label = EVIL.replace("\n", "\\n")
            return web.Response(text=f'vllm:cache_config_info{{block_size="{label}"}} 1\n')
        return web.json_response({"choices": []})

    async with (
        serving(answer) as target,
        up(tmp_path, f"http://{target}", "--log-level=debug") as gateway,
    ):
        async with gateway.client.post(gateway.url + CHAT, json=chat("hello") | {"model": EVIL}):
            await gateway.says("exchange.finished")
        assert gateway.said.count("\\u001b]0;owned") >= 3
        assert all(line.isprintable() for line in gateway.said.split("\n"))
        assert "\n2026-01-01T00:00:00 forged" not in gateway.said
