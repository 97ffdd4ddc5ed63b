import socket

import pytest

from epp.errors import ConfigError
from epp.up.servers import Address, ModelServer, addresses_of, model_servers

LO = socket.if_nametoindex("lo")
TAKEN = {
    "http://10.0.0.11:8000": ModelServer("http", "10.0.0.11", 8000),
    "http://10.0.0.11:8000/": ModelServer("http", "10.0.0.11", 8000),
    "http://gpu1": ModelServer("http", "gpu1", 80),
    "https://gpu1.example.com": ModelServer("https", "gpu1.example.com", 443),
    "HTTPS://GPU1:8443": ModelServer("https", "gpu1", 8443),
    "http://gpu1.:8000": ModelServer("http", "gpu1", 8000),
    "http://model_server-1:8000": ModelServer("http", "model_server-1", 8000),
    "http://[fd00:0::1]:8000": ModelServer("http", "fd00::1", 8000),
    "http://[::ffff:10.0.0.11]:8000": ModelServer("http", "10.0.0.11", 8000),
    # RFC 6874, and as most write it. Envoy knows the interface by its number.
    "http://[fe80::1%25lo]:8000": ModelServer("http", f"fe80::1%{LO}", 8000),
    "http://[fe80::1%lo]:8000": ModelServer("http", f"fe80::1%{LO}", 8000),
    "http://[fe80::1%25]:8000": ModelServer("http", "fe80::1%25", 8000),
    "http://localhost:1": ModelServer("http", "localhost", 1),
}
REFUSED = {
    "10.0.0.12:9000": "no http:// or https:// before the host; write http://10.0.0.12:9000",
    "gpu1": "no http:// or https:// before the host; write http://gpu1",
    "gpu1:8000/v1": "no http:// or https:// before the host; write http://10.0.0.11:8000",
    "": "no http:// or https://",
    "ftp://gpu1": "`ftp` is neither http nor https",
    "grpc://gpu1:9000": "`grpc` is neither",
    "http://": "`` is not a host name",
    "http://:8000": "`` is not a host name",
    "http://gpu 1:8000": "`gpu 1` is not a host name",
    "http://-gpu:8000": "`-gpu` is not a host name",
    "http://gpü:8000": "`gpü` is not a host name",
    f"http://{'a' * 64}:8000": "is not a host name",
    "http://gpu1:0": "no server listens at port 0",
    "http://gpu1:65536": "this is not the URL of a server",
    "http://gpu1:eight": "this is not the URL of a server",
    "http://[::1:8000": "this is not the URL of a server",
    "http://[fe80::1%none0]:8000": "`fe80::1%none0` is not a host name",
    "http://gpu1:8000/v1": "leave out `/v1`",
    "http://gpu1:8000/v1/chat/completions": "leave out `/v1/chat/completions`",
    "http://gpu1:8000?a=b": "leave out `?...`",
    "http://gpu1:8000/#a": "leave out `/#...`",
    "http://gpu1:8000#a": "leave out `#...`",
    "http://me:sk-1@gpu1:8000": "a user in the URL is not passed on; use --upstream-api-key-env",
}


@pytest.mark.parametrize("url", TAKEN)
def test_a_url_names_a_server(url):
    assert model_servers([url]) == (TAKEN[url],)


@pytest.mark.parametrize("url", REFUSED)
def test_what_names_none_is_refused(url):
    with pytest.raises(ConfigError) as caught:
        model_servers(["http://good:1", url])
    assert REFUSED[url] in caught.value.problem


@pytest.mark.parametrize("url", ["http://{}gpu1:8000", "{}gpu1", "ftp://{}gpu1", "http://{}x:y"])
def test_a_password_is_not_repeated(url):
    with pytest.raises(ConfigError) as caught:
        model_servers([url.format("me:sk-1/2@")])
    assert "sk-1" not in str(caught.value)
    assert caught.value.place == url.format("...@")


@pytest.mark.parametrize("url", ["gpu1:8000/v1?key=sk-1", "ftp://gpu1?sk-1", "http://a\nsk-1@b"])
def test_no_other_secret_is_repeated(url):
    with pytest.raises(ConfigError) as caught:
        model_servers([url])
    assert "sk-1" not in str(caught.value)


@pytest.mark.parametrize(
    ("urls", "problem"),
    [
        (["http://a:80", "http://a"], "this server is given twice"),
        (["http://[::1]:80", "http://[0::1]:80"], "this server is given twice"),
    ],
)
def test_servers_that_do_not_fit_together(urls, problem):
    with pytest.raises(ConfigError, match=problem):
        model_servers(urls)


def test_a_server_can_be_written_again():
    (six, name, secure) = model_servers(["http://[::1]:8000", "http://gpu1", "https://gpu2"])
    assert (six.scheme, six.authority, six.address) == ("http", "[::1]:8000", "::1")
    assert (name.scheme, name.authority, name.address) == ("http", "gpu1:80", None)
    assert [each.tls_name for each in (six, name, secure)] == [None, None, "gpu2"]


GPU = ModelServer("http", "gpu", 8000)


def listed(addresses):
    return [(each.name, each.target) for each in addresses]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], []),
        (["10.0.0.1"], [("gpu:8000-10.0.0.1", "10.0.0.1:8000")]),
        (["10.0.0.1", "10.0.0.1"], [("gpu:8000-10.0.0.1", "10.0.0.1:8000")]),
        (["::1", "127.0.0.1"], [("gpu:8000-127.0.0.1", "127.0.0.1:8000")]),
        (["fd00::1"], [("gpu:8000-fd00::1", "[fd00::1]:8000")]),
        (
            ["10.0.0.2", "10.0.0.1"],
            [("gpu:8000-10.0.0.1", "10.0.0.1:8000"), ("gpu:8000-10.0.0.2", "10.0.0.2:8000")],
        ),
        (["fe80::1%lo"], [(f"gpu:8000-fe80::1%{LO}", f"[fe80::1%{LO}]:8000")]),
        (["fe80::1%none0"], []),
        (["what"], []),
    ],
)
def test_the_addresses_of_a_name(found, expected):
    assert listed(addresses_of(GPU, found)) == expected


def test_the_address_of_a_server_that_is_given_by_it_has_its_name():
    (server,) = model_servers(["http://10.0.0.1:8000"])
    assert listed(addresses_of(server, ["10.0.0.1"])) == [("10.0.0.1:8000", "10.0.0.1:8000")]


def test_an_address_is_one_endpoint_whatever_names_it_has():
    taken = addresses_of(ModelServer("http", "first", 8000), ["10.0.0.1"])
    assert addresses_of(GPU, ["10.0.0.1"], taken) == ()
    found = addresses_of(GPU, ["10.0.0.2"], taken)
    assert listed(found) == [("gpu:8000-10.0.0.2", "10.0.0.2:8000")]
    assert Address("a", "::1", 1).target == "[::1]:1"
