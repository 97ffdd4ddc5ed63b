"""The flags `--replicas` and `--replicas-port`: what they mean, and what cannot be meant."""

import argparse

import pytest

from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings
from epp.cli.main import main
from epp.cli.replica_flags import add_replicas, replicas_of
from epp.errors import ConfigError

SECRET = b"a secret of sixteen bytes and more"


def meant(*argv, secret=SECRET):
    parser = argparse.ArgumentParser()
    add_replicas(parser)
    return replicas_of(parser.parse_args(argv), secret)


def test_nothing_is_exchanged_unless_it_is_wanted():
    assert meant() is None
    assert meant("--replicas=") is None


def test_hosts_may_be_listed_and_the_flag_repeated():
    assert meant("--replicas", "a,b:1", "--replicas=[::1]:2", "--replicas-port=7") == (
        ReplicaSettings(
            peers=[PeerAddress("a", 9004), PeerAddress("b", 1), PeerAddress("::1", 2)], port=7
        )
    )


@pytest.mark.parametrize(
    ("argv", "secret", "message"),
    [
        (["--replicas=a"], b"", "--hash-secret-file: replicas share a secret of at least 16"),
        (["--replicas=a"], b"short", "--hash-secret-file"),
        (["--replicas=a:b:c:"], SECRET, "--replicas: `a:b:c:` is not a host and a port"),
    ],
)
def test_what_cannot_be_meant_is_said(argv, secret, message):
    with pytest.raises(ConfigError, match=message):
        meant(*argv, secret=secret)


def test_epp_serve_says_it_before_it_starts(tmp_path, capsys):
    (tmp_path / "endpoints.yaml").write_text("endpoints: []")
    flags = ["--endpoints-file", str(tmp_path / "endpoints.yaml"), "--replicas=pickers"]
    assert main(["serve", *flags]) == 1
    assert "openssl rand" in capsys.readouterr().err
