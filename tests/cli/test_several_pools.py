"""Several pools in one process."""

import argparse
import asyncio
import json
import os
import signal
import sys
from typing import Any

import aiohttp
import pytest

from epp.cli.main import _parser, main
from epp.cli.serve_flags import add_serve
from epp.cli.several_pools import _LIST_FLAGS, parse
from tests.processes import HERE, SECONDS

FILE = "endpoints: [{{name: pod-{name}, address: 127.0.0.1, port: {port}}}]\n"


@pytest.fixture
def folder(tmp_path):
    for name, port in (("a", 9), ("b", 10)):
        (tmp_path / f"{name}.yaml").write_text(FILE.format(name=name, port=port))
    (tmp_path / "policy.yaml").write_text("plugins: [{type: random-picker}]\n")
    return tmp_path


async def page(port, path):
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status, await answer.text()


async def test_each_pool_has_its_endpoints_its_ports_and_its_policy(folder):
    first = ("--pool-name=a", f"--endpoints-file={folder / 'a.yaml'}", "--policy=round-robin")
    second = ("--pool-name=b", f"--endpoints-file={folder / 'b.yaml'}")
    other = f"--config-file={folder / 'policy.yaml'}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", "serve", *first, *HERE, "--log-format=json"),
        *("and", *second, other, "and", *second[1:], "--pool-name=c"),
        env=os.environ | {"KUBECONFIG": ""},
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(SECONDS):
            serving: dict[str, dict[str, Any]] = {}
            while len(serving) < 3:
                line = json.loads(await process.stderr.readline())
                if line["event"] == "serving":
                    serving[line["pool"]] = line
            assert {name: line["picker"] for name, line in serving.items()} == {
                "a": "RoundRobinPicker",
                "b": "RandomPicker",
                "c": "RoundRobinPicker",
            }
            for name, endpoint in (("a", "a"), ("b", "b"), ("c", "b")):
                status, text = await page(serving[name]["metrics_port"], "/metrics")
                assert status == 200
                assert f'"pod-{endpoint}"' in text
                assert f'name="{name}"' in text
            process.send_signal(signal.SIGTERM)
            await process.communicate()
            assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()  # until the pipe is closed, too


@pytest.mark.parametrize(
    ("flags", "replicas", "gates"),
    [
        ([], ["a"], ["x"]),
        (["--replicas=b", "--replicas=c"], ["b", "c"], ["x"]),
        (["-replicas", "b"], ["b"], ["x"]),
        (["--replicas-port=1"], ["a"], ["x"]),
        (["--feature-gates=y"], ["a"], ["y"]),
    ],
)
def test_a_list_that_a_further_pool_repeats_replaces_the_first_pools(flags, replicas, gates):
    words = ["serve", "--pool-name=a", "--replicas=a", "--feature-gates=x"]
    first = parse(_parser(), [*words, "and", "--pool-name=b", *flags])
    (further,) = first.others
    assert (first.replicas, first.feature_gates) == (["a"], ["x"])
    assert (further.replicas, further.feature_gates) == (replicas, gates)


def test_every_flag_that_adds_to_a_list_is_known():
    parser = argparse.ArgumentParser()
    add_serve(parser)
    lists = {each.dest for each in parser._actions if isinstance(each, argparse._AppendAction)}
    assert lists == {*_LIST_FLAGS, "endpoint_target_ports"}


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (("--pool-name=b",), "--grpc-port: 9002 is taken: each pool needs ports of its own"),
        (
            ("--pool-name=b", "--grpc-port=1", "--grpc-health-port=9090", "--metrics-port=2"),
            "--metrics-port: 9090 is taken",
        ),
        (("--grpc-port=1", "--grpc-health-port=2", "--metrics-port=3"), "no endpoints"),
        *(
            (
                ("--grpc-port=1", "--grpc-health-port=2", "--metrics-port=3", flag),
                f"{said}: all pools have one log: write it before `and`",
            )
            for flag, said in (("-v=4", "--log-level"), ("--zap-encoder=json", "--log-format"))
        ),
    ],
)
def test_pools_that_conflict_are_refused(folder, capsys, more, complaint):
    first = ["serve", f"--endpoints-file={folder / 'a.yaml'}"]
    second = [*more, f"--endpoints-file={folder / 'b.yaml'}"] if "b" in str(more) else [*more]
    assert main([*first, "and", *second]) == 2
    assert complaint in capsys.readouterr().err


def test_an_unknown_flag_is_reported_with_its_pool(folder, capsys):
    with pytest.raises(SystemExit):
        main(["serve", f"--endpoints-file={folder / 'a.yaml'}", "and", "--nonsense"])
    assert "epp serve ... and: error: unrecognized arguments: --nonsense" in capsys.readouterr().err
