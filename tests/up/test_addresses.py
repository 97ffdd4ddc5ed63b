import json
import os
import time

import pytest

from epp.errors import ConfigError
from epp.protocol.endpoints import parse_endpoints
from epp.system.host_names import HostNames
from epp.up.addresses import AddressBook
from epp.up.proxy import SERVERS_FILE, put
from epp.up.servers import model_servers

FILE = "endpoints: [{name: %s, address: 10.0.0.1, port: 8000}]"


class Names:
    """A name server whose answers a test sets, of servers that all answer but the `silent`."""

    def __init__(self, **known):
        self.known = known
        self.silent = set()
        self.host_names = HostNames(time.monotonic, self.lookup, self.answers)

    def answers(self, addresses, _port):
        return set(addresses) - self.silent

    def lookup(self, host):
        found = self.known.get(host)
        if found is None:
            raise OSError(-2, "Name or service not known")
        return found


def in_front(folder):
    """The hosts that Envoy has, and the endpoints that the picker has."""
    (loaded,) = json.loads((folder / SERVERS_FILE).read_text())["resources"]
    hosts = loaded["endpoints"][0]["lb_endpoints"]
    sockets = [each["endpoint"]["address"]["socket_address"] for each in hosts]
    endpoints = parse_endpoints((folder / "endpoints.json").read_bytes())
    return [f"{each['address']}:{each['port_value']}" for each in sockets], [
        (each.name, each.target) for each in endpoints
    ]


@pytest.fixture
def said():
    return []


async def test_names_are_resolved_and_followed(tmp_path, said):
    names = Names(gpu1=["10.0.0.1"], gpu2=["10.0.0.2"])
    servers = model_servers(["http://gpu1:8000", "http://gpu2:8000", "http://10.0.0.3:8000"])
    book = AddressBook(servers, None, tmp_path, said.append, names.host_names)
    await book.load(None)
    assert in_front(tmp_path) == (
        ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"],
        [
            ("gpu1:8000-10.0.0.1", "10.0.0.1:8000"),
            ("gpu2:8000-10.0.0.2", "10.0.0.2:8000"),
            ("10.0.0.3:8000", "10.0.0.3:8000"),
        ],
    )
    before = (tmp_path / SERVERS_FILE).stat().st_ino
    await book.refresh()
    assert said == []
    assert (tmp_path / SERVERS_FILE).stat().st_ino == before  # Envoy reads nothing again
    names.known = {"gpu1": ["10.0.0.1"], "gpu2": ["10.0.0.9"]}
    await book.refresh()
    assert in_front(tmp_path)[0] == ["10.0.0.1:8000", "10.0.0.9:8000", "10.0.0.3:8000"]
    assert said == [
        "added gpu2:8000-10.0.0.9 (10.0.0.9:8000)",
        "removed gpu2:8000-10.0.0.2 (10.0.0.2:8000)",
    ]


async def test_a_name_that_is_lost_keeps_its_address_and_is_said_once(tmp_path, said):
    names = Names(gpu1=["10.0.0.1"])
    book = AddressBook(
        model_servers(["http://gpu1:8000"]), None, tmp_path, said.append, names.host_names
    )
    await book.load(None)
    names.known = {}
    await book.refresh()
    await book.refresh()
    assert said == ["gpu1 cannot be resolved: Name or service not known"]
    assert in_front(tmp_path)[0] == ["10.0.0.1:8000"]
    names.known = {"gpu1": ["10.0.0.1"]}
    await book.refresh()
    names.known = {}
    await book.refresh()
    assert len(said) == 2  # it is lost a second time


async def test_names_that_nobody_knows_leave_no_servers(tmp_path, said):
    book = AddressBook(
        model_servers(["http://gpu1:8000"]), None, tmp_path, said.append, Names().host_names
    )
    await book.load(None)
    assert in_front(tmp_path) == ([], [])


async def test_two_names_of_one_server_are_one_endpoint(tmp_path, said):
    names = Names(gpu1=["10.0.0.1"], alias=["10.0.0.1"])
    servers = model_servers(["http://gpu1:8000", "http://alias:8000"])
    book = AddressBook(servers, None, tmp_path, said.append, names.host_names)
    await book.load(None)
    assert in_front(tmp_path)[1] == [("gpu1:8000-10.0.0.1", "10.0.0.1:8000")]
    ignored = "alias:8000 is ignored: all its addresses belong to other URLs too"
    assert said == [ignored]
    names.known["alias"] = ["10.0.0.2"]
    await book.refresh()
    names.known["alias"] = ["10.0.0.1"]
    await book.refresh()
    assert said.count(ignored) == 2  # of another time


async def test_an_endpoints_file_is_followed_and_its_last_good_content_stays(tmp_path, said):
    path = tmp_path / "file.yaml"
    path.write_text(FILE % "a")
    book = AddressBook((), path, tmp_path, said.append)
    await book.load(None)
    assert book.endpoints_path == path
    assert [each.name for each in book.addresses] == ["a"]
    put(path, FILE % "/")
    await book.refresh()
    await book.refresh()
    assert len(said) == 1
    assert said[0].startswith(f"{path}: endpoints[0].name: ")
    assert [each.name for each in book.addresses] == ["a"]
    put(path, FILE % "b")
    await book.refresh()
    assert [each.name for each in book.addresses] == ["b"]
    assert said[1] == f"{path} is valid again"
    put(path, FILE % "c")
    await book.refresh()
    assert said.count(f"{path} is valid again") == 1
    path.unlink()
    await book.refresh()
    assert said[-1] == f"{path}: cannot be read: No such file or directory"


async def test_a_file_that_cannot_be_read_is_refused_at_first(tmp_path, said):
    with pytest.raises(ConfigError, match="No such file"):
        await AddressBook((), tmp_path / "none", tmp_path, said.append).load(None)
    path = tmp_path / "file.yaml"
    path.write_text(FILE % "/")
    with pytest.raises(ConfigError) as refused:
        await AddressBook((), path, tmp_path, said.append).load(None)
    assert str(refused.value).startswith(f"{path}: endpoints[0].name: ")


async def test_a_file_with_https_servers_is_refused(tmp_path, said):
    path = tmp_path / "file.yaml"
    path.write_text((FILE % "a").replace("}", ", appProtocol: https}"))
    with pytest.raises(
        ConfigError, match=r"endpoints\[0\]\.appProtocol: .*https://10\.0\.0\.1:8000"
    ):
        await AddressBook((), path, tmp_path, said.append).load(None)


async def test_a_name_that_shows_some_of_its_servers_keeps_all_that_answer(tmp_path, said):
    names = Names(gpu=["10.0.0.1", "10.0.0.2"])
    book = AddressBook(
        model_servers(["http://gpu:8000"]), None, tmp_path, said.append, names.host_names
    )
    await book.load(None)
    names.known = {"gpu": ["10.0.0.2", "10.0.0.3"]}
    await book.refresh()
    assert in_front(tmp_path)[0] == ["10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"]
    names.silent = {"10.0.0.1"}
    await book.refresh()
    assert in_front(tmp_path)[0] == ["10.0.0.2:8000", "10.0.0.3:8000"]
    assert said == [
        "added gpu:8000-10.0.0.3 (10.0.0.3:8000)",
        "removed gpu:8000-10.0.0.1 (10.0.0.1:8000)",
    ]


async def test_an_address_that_joins_a_name_leaves_the_endpoints_that_are_there_alone(
    tmp_path, said
):
    names = Names(gpu=["10.0.0.1"])
    book = AddressBook(
        model_servers(["http://gpu:8000"]), None, tmp_path, said.append, names.host_names
    )
    await book.load(None)
    _, before = in_front(tmp_path)
    names.known = {"gpu": ["10.0.0.1", "10.0.0.2"]}
    await book.refresh()
    _, after = in_front(tmp_path)
    assert after == [*before, ("gpu:8000-10.0.0.2", "10.0.0.2:8000")]
    assert said == ["added gpu:8000-10.0.0.2 (10.0.0.2:8000)"]


async def test_a_name_of_thousands_is_bounded_and_said_once(tmp_path, said):
    many = [f"10.0.{number // 250}.{number % 250}" for number in range(3_000)]
    names = Names(gpu=many)
    book = AddressBook(
        model_servers(["http://gpu:8000"]), None, tmp_path, said.append, names.host_names
    )
    await book.load(None)
    hosts, endpoints = in_front(tmp_path)
    names.known = {"gpu": many[::-1]}
    await book.refresh()
    assert (len(hosts), len(endpoints)) == (1024, 1024)
    assert in_front(tmp_path) == (hosts, endpoints)
    assert said == ["gpu has more than 1024 addresses: the others are not used"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a FIFO", "a directory"])
async def test_what_is_no_file_is_said_once_and_the_next_file_is_followed(make, tmp_path, said):
    path = tmp_path / "file.yaml"
    path.write_text(FILE % "a")
    book = AddressBook((), path, tmp_path, said.append)
    await book.load(None)
    path.unlink()
    make(path)
    await book.refresh()
    await book.refresh()
    assert said == [f"{path}: it is not a regular file"]
    draft = tmp_path / "draft"
    draft.write_text(FILE % "b")
    path.rename(tmp_path / "away")
    draft.rename(path)
    await book.refresh()
    assert [each.name for each in book.addresses] == ["b"]


async def test_a_change_that_could_not_be_written_is_written_later(tmp_path, said):
    path, folder = tmp_path / "file.yaml", tmp_path / "folder"
    folder.mkdir()
    path.write_text(FILE % "a")
    book = AddressBook((), path, folder, said.append)
    await book.load(None)
    put(path, FILE % "b")
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        await book.refresh()
    (tmp_path / "away").rename(folder)
    await book.refresh()
    assert [each.name for each in book.addresses] == ["b"]
    assert '"10.0.0.1"' in (folder / SERVERS_FILE).read_text()
