import asyncio
import contextlib

import pytest
import yaml
from structlog.testing import capture_logs

from epp.adapters.endpoints_file import EndpointsFile
from epp.errors import ConfigError
from epp.model.events import EndpointRemoved, EndpointUpserted, Listed

POLL = 0.005


class Told:
    """Collects events until they are taken."""

    def __init__(self):
        self.events = []

    def __call__(self, event):
        self.events.append(event)

    def take(self):
        taken, self.events = self.events, []
        return [summary(event) for event in taken]

    async def next(self, count):
        async with asyncio.timeout(5):
            while len(self.events) < count:
                await asyncio.sleep(POLL)
        return self.take()


def summary(event):
    match event:
        case EndpointUpserted(endpoint):
            return ("up", endpoint.id, endpoint.target)
        case EndpointRemoved(endpoint_id):
            return ("gone", endpoint_id)
        case Listed():
            return ("listed",)
        case _:
            return (type(event).__name__,)


def write(path, **targets):
    entries = [
        {"name": name, "address": target.split(":")[0], "port": int(target.split(":")[1])}
        for name, target in targets.items()
    ]
    path.write_text(yaml.safe_dump({"endpoints": entries}))


async def logged(logs, event):
    async with asyncio.timeout(5):
        while event not in [entry["event"] for entry in logs]:
            await asyncio.sleep(POLL)


@contextlib.asynccontextmanager
async def following(path):
    told = Told()
    source = EndpointsFile(path, told, poll=POLL)
    source.load()
    task = asyncio.create_task(source.run())
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "endpoints.yaml"
    write(path, a="10.0.0.1:1", b="10.0.0.2:2")
    return path


BOTH = [("up", "default/a", "10.0.0.1:1"), ("up", "default/b", "10.0.0.2:2"), ("listed",)]


def test_the_first_read_lists_everything(path):
    told = Told()
    EndpointsFile(path, told).load()
    assert told.take() == BOTH


def test_a_first_read_that_fails_is_a_config_error(tmp_path):
    missing = tmp_path / "none.yaml"
    with pytest.raises(ConfigError, match=r"cannot read .*none.yaml: No such file"):
        EndpointsFile(missing, Told()).load()
    with pytest.raises(ConfigError, match="Is a directory"):
        EndpointsFile(tmp_path, Told()).load()
    missing.write_text("endpoints: [{name: a, address: 10.0.0.1, port: 99999}]")
    with pytest.raises(ConfigError) as raised:
        EndpointsFile(missing, Told()).load()
    assert raised.value.place == "endpoints[0].port"


async def test_only_differences_are_applied(path):
    async with following(path) as told:
        assert told.take() == BOTH
        write(path, b="10.0.0.2:2", c="10.0.0.3:3")
        assert await told.next(2) == [("gone", "default/a"), ("up", "default/c", "10.0.0.3:3")]


async def test_another_address_is_another_endpoint(path):
    async with following(path) as told:
        told.take()
        write(path, a="10.0.0.2:2", b="10.0.0.1:1")
        assert await told.next(4) == [
            ("gone", "default/a"),
            ("gone", "default/b"),
            ("up", "default/a", "10.0.0.2:2"),
            ("up", "default/b", "10.0.0.1:1"),
        ]


async def test_another_rank_is_another_endpoint(path):
    entry = "endpoints: [{{name: a, address: 10.0.0.1, port: 1, dataParallelRank: {}}}]"
    path.write_text(entry.format(0))
    async with following(path) as told:
        told.take()
        path.write_text(entry.format(1))
        assert await told.next(2) == [("gone", "default/a"), ("up", "default/a", "10.0.0.1:1")]


async def test_labels_change_in_place(path):
    async with following(path) as told:
        told.take()
        path.write_text(
            "endpoints: [{name: a, address: 10.0.0.1, port: 1, labels: {x: y}},"
            " {name: b, address: 10.0.0.2, port: 2}]"
        )
        assert await told.next(1) == [("up", "default/a", "10.0.0.1:1")]


async def test_a_mounted_config_map_is_followed_through_its_symlinks(tmp_path):
    for name, target in (("v1", "10.0.0.1:1"), ("v2", "10.0.0.9:9")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "endpoints.yaml", a=target)
    (tmp_path / "..data").symlink_to("v1")
    path = tmp_path / "endpoints.yaml"
    path.symlink_to("..data/endpoints.yaml")
    async with following(path) as told:
        told.take()
        (tmp_path / "..data_tmp").symlink_to("v2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        assert await told.next(2) == [("gone", "default/a"), ("up", "default/a", "10.0.0.9:9")]


async def test_a_broken_file_keeps_the_last_valid_endpoints(path):
    with capture_logs() as logs:
        async with following(path) as told:
            told.take()
            path.write_text("endpoints: [{name: a, address: 10.0.0.1, port: 0}]")
            await logged(logs, "endpoints_file.rejected")
            assert told.take() == []
            write(path, a="10.0.0.1:1")
            assert await told.next(1) == [("gone", "default/b")]
            await logged(logs, "endpoints_file.recovered")
    assert [entry["event"] for entry in logs] == [
        "endpoints_file.rejected",
        "endpoints_file.recovered",
    ]
    assert logs[0]["error"].startswith("endpoints[0].port: ")


async def test_a_deleted_file_keeps_the_last_valid_endpoints(path):
    with capture_logs() as logs:
        async with following(path) as told:
            told.take()
            path.unlink()
            await logged(logs, "endpoints_file.rejected")
            write(path, a="10.0.0.1:1", b="10.0.0.2:2")
            await logged(logs, "endpoints_file.recovered")
            assert told.take() == []
    assert "No such file" in logs[0]["error"]
