"""The command as its users start it: one line, an answer, an orderly end."""

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys

import aiohttp
import pytest
from model_server.simulator.cli import parse
from model_server.simulator.settings import Settings

DEADLINE = 15
COMMAND = [sys.executable, "-m", "model_server.simulator"]


async def start(*flags):
    """A simulator process and the line it printed."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--port", "0", *flags, stdout=subprocess.PIPE
    )
    line = json.loads(await asyncio.wait_for(process.stdout.readline(), DEADLINE))
    return process, line


async def end(process):
    """Its exit status and what else it printed on stdout."""
    async with asyncio.timeout(DEADLINE):
        return await process.wait(), await process.stdout.read()


async def stream(client, url, tokens):
    body = {"prompt": "hi", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    return await client.post(f"{url}/v1/completions", json=body)


async def test_a_stopped_server_finishes_what_it_runs_and_takes_nothing_more():
    process, line = await start()
    assert (line["event"], line["host"]) == ("listening", "127.0.0.1")
    url = f"http://127.0.0.1:{line['port']}"
    async with aiohttp.ClientSession() as client:
        response = await stream(client, url, 60)
        first = await response.content.readany()
        process.send_signal(signal.SIGTERM)
        text = first.decode() + await asyncio.wait_for(response.text(), DEADLINE)
        assert text.endswith("data: [DONE]\n\n")
        status, rest = await end(process)
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.get(f"{url}/health")
    assert (status, rest) == (0, b"")


async def test_the_drain_is_bounded():
    process, line = await start("--drain-seconds", "0.1")
    async with aiohttp.ClientSession() as client:
        response = await stream(client, f"http://127.0.0.1:{line['port']}", 100_000)
        await response.content.readany()
        process.send_signal(signal.SIGTERM)
        status, _ = await end(process)
        response.close()
    assert status == 0


async def test_a_port_that_is_taken_is_named():
    first, line = await start()
    second = await asyncio.create_subprocess_exec(
        *COMMAND, "--port", str(line["port"]), stderr=subprocess.PIPE
    )
    async with asyncio.timeout(DEADLINE):
        _, said = await second.communicate()
    first.terminate()
    await end(first)
    assert second.returncode == 1
    assert re.fullmatch(rb"simulator: 127.0.0.1:\d+: .*address already in use.*\n", said)


async def test_a_port_of_kv_events_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://*:{taken.getsockname()[1]}"
        config = json.dumps({"enable_kv_cache_events": True, "endpoint": endpoint})
        process = await asyncio.create_subprocess_exec(
            *COMMAND, "--port", "0", "--kv-events-config", config, stderr=subprocess.PIPE
        )
        async with asyncio.timeout(DEADLINE):
            _, said = await process.communicate()
    expected = f"simulator: {endpoint}: Address already in use\n"
    assert (process.returncode, said.decode()) == (1, expected)


def test_help_names_every_flag(capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(["--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0
    for flag in ("--num-gpu-blocks-override", "--lora-modules", "--speed", "--faults"):
        assert flag in text


def test_without_flags_the_defaults_of_the_settings_hold():
    assert parse([]) == Settings()


def test_flags():
    line = (
        "--port 0 --name p --lora-modules a=/x b --block-size 32 --num-gpu-blocks-override 10"
        " --speed 2 --step-ms 3 --no-prompt-tokens-details --faults"
    )
    given = parse(line.split())
    assert (given.name, given.lora_modules, given.faults) == (
        *("p", {"a": "/x", "b": "b"}),
        True,
    )
    assert (given.limits.block_size, given.limits.context_len) == (32, 9 * 32)
    assert (given.speed.factor, given.speed.step_ms) == (2.0, 3.0)
    assert not given.prompt_tokens_details


def test_adapters_as_json():
    text = '{"name": "sql", "path": "hub/sql", "base_model_name": "base"}'
    assert parse(["--lora-modules", text, "a=/x"]).lora_modules == {"sql": "hub/sql", "a": "/x"}


SENSELESS = [
    *("--speed 0", "--speed nan", "--num-gpu-blocks-override 1", "--block-size x"),
    *("--max-num-seqs 0", "--max-num-batched-tokens 0", "--max-model-len -1", "--max-loras 0"),
    *("--step-ms -1", "--drain-seconds -1", '--lora-modules {"name":"a"}'),
    *("--port -1", "--port 65536"),
]


@pytest.mark.parametrize("flags", SENSELESS)
def test_senseless_flags_are_refused(flags, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(flags.split())
    assert stopped.value.code == 2
    assert "error:" in capsys.readouterr().err
