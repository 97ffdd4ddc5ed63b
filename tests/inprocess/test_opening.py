"""What a picker is opened with, and when it is open."""

import asyncio
import json
import os

import pytest

from epp.app.options import ServeOptions
from epp.config.file import load
from epp.errors import ConfigError, ShuttingDown
from epp.inprocess import InProcessPicker, open_picker
from epp.model.endpoint import Endpoint
from tests.adapters.tokens.folders import byte_level, write
from tests.inprocess.simulators import IDS, ask, simulators

USAGE = {"include_usage": True}


async def test_everything_that_serve_can_be_told_is_an_option():
    async with simulators(1) as (servers, client):
        host, _, port = servers[0].rpartition(":")
        options = ServeOptions(
            settings=load("plugins: [{type: least-ttft-picker}]"),
            source=(Endpoint("default", "a", host, int(port)),),
            shadow=("random", load("plugins: [{type: random-picker}]")),
        )
        async with InProcessPicker(options) as picker:
            pick, _ = await ask(picker, client, IDS | {"stream": True, "stream_options": USAGE})
            assert "warmpick_shadow_" in picker.metrics()
            # The service would leave a stream like this one after its first piece.
            ending = pick.explain().ending
            assert ending is not None
            assert (ending.outcome, ending.completion_tokens) == ("completed", 4)


async def test_what_is_open_ends_with_the_picker(tmp_path):
    folder = write(tmp_path / "m", byte_level())
    config = {
        "plugins": [
            {"type": "least-ttft-picker"},
            {"type": "token-producer", "parameters": {"tokenizer": str(folder)}},
        ]
    }
    long = {
        "model": "m",
        "messages": [{"role": "user", "content": "the keeper counted 42 " * 9000}],
    }
    async with simulators(1) as (servers, _):
        picker = await open_picker(servers, config_text=json.dumps(config)).start()
        running = picker.pick({"model": "m", "messages": [{"role": "user", "content": "hello"}]})
        await running.__aenter__()
        tokenized = asyncio.create_task(picker.pick(long).__aenter__())
        await asyncio.sleep(0)
        assert not tokenized.done()
        await picker.close()
        with pytest.raises(ShuttingDown):
            await tokenized
        (view,) = picker.explain(running.id)
        assert view.ending is not None
        assert view.ending.outcome == "aborted"
        for late in (running, picker.pick(long)):
            with pytest.raises(ShuttingDown):
                await late.__aenter__()
        with pytest.raises(ShuttingDown):
            await picker.set_endpoints(servers)
        await picker.close()
        with pytest.raises(RuntimeError, match="opened once"):
            await picker.start()
    assert {task.get_name() for task in asyncio.all_tasks() if "picker" in task.get_name()} == set()


def test_a_picker_is_opened_before_it_picks():
    with pytest.raises(RuntimeError, match="the picker is not open"):
        open_picker().pick(IDS)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"config": "a.yaml", "config_text": "plugins: []"}, "give only one of these"),
        ({"config": "missing.yaml"}, "missing.yaml: cannot be read: No such file"),
        ({"config_text": "plugins: [{type: x}]"}, "plugins"),
        ({"policy": "best"}, "policy: `best` is not one of"),
        ({"config": os.devnull, "policy": "best"}, "policy: `best` is not one of"),
        (
            {"config_text": "plugins: []", "policy": "random"},
            "policy and config, .*: give only one",
        ),
        ({"max_body_bytes": -1}, "max_body_bytes: -1 is not a number of 0 or more"),
        ({"scrape_interval": 0}, "scrape_interval: 0 is not an interval in seconds"),
        ({"scrape_interval": float("nan")}, "scrape_interval: nan is not an interval in seconds"),
        ({"hold_timeout": -1.0}, "hold_timeout: -1.0 is not a number of seconds"),
        ({"hold_empty_timeout": -0.5}, "hold_empty_timeout: -0.5 is not a number of seconds"),
        ({"eject_after": -1}, "eject_after: -1 is not a number of 0 or more"),
        ({"metrics_port": 99999}, "metrics_port: 99999 is not a port"),
        ({"metrics_port": -1}, "metrics_port: -1 is not a port"),
        ({"record": __file__}, "record: cannot write to the folder .*: Not a directory"),
        ({"unreachable": [OSError]}, r"unreachable: \[.*OSError.*\] is not a class of exceptions"),
        ({"unreachable": (OSError, "x")}, "unreachable: 'x' is not a class of exceptions"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(given, problem):
    with pytest.raises(ConfigError, match=problem):
        open_picker(**given)


def test_a_setting_without_effect_is_a_warning():
    text = "plugins: [{type: least-ttft-picker}]\nflowControl: {maxRequests: 5}"
    with pytest.warns(UserWarning, match="flowControl has no effect"):
        open_picker(config_text=text)
