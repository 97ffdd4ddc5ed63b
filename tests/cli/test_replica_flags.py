"""The flags of replicas and workers: what they mean, and what cannot be meant."""

import argparse
from pathlib import Path

import pytest

from epp.adapters.replicas.redis_server import RedisServer
from epp.adapters.replicas.settings import PeerAddress, ReplicaSettings, Siblings
from epp.app.workers.worker import for_worker
from epp.cli.main import main
from epp.cli.replica_flags import add_replicas, replica_notices, replicas_of
from epp.config.file import load
from epp.errors import ConfigError
from tests.native.built import needs_native

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


def test_a_server_is_named_in_place_of_hosts(tmp_path):
    password = tmp_path / "password"
    password.write_text("open sesame")
    flags = ("--replicas=rediss://pickers@redis", f"--replicas-password-file={password}")
    server = RedisServer(host="redis", username="pickers", password_file=password, tls=True)
    found = meant(*flags)
    assert found == ReplicaSettings(peers=[], redis=server)
    siblings = Siblings(folder=Path("/run/x"), number=1, count=2)
    assert for_worker(found, siblings).redis == server


SYNCER = """
plugins:
- {type: queue-scorer}
- type: redis-state-store
  parameters: {address: "[::1]:7000", passwordEnv: PASSWORD, db: 3, stateTTL: 5s}
dataLayer: {crossReplica: {syncerPluginRef: redis-state-store, syncInterval: 100ms}}
"""


def test_the_server_of_the_file_counts_unless_a_flag_names_others():
    settings = load(SYNCER)
    parser = argparse.ArgumentParser()
    add_replicas(parser)
    parser.add_argument("--hash-secret-file")
    words = parser.parse_args([])
    server = RedisServer(host="::1", port=7000, database=3, password_variable="PASSWORD")  # noqa: S106 (its name)
    found = replicas_of(words, SECRET, settings.redis_syncer)
    assert found == ReplicaSettings(peers=[], redis=server)
    assert replicas_of(words, b"", settings.redis_syncer) is None
    assert [each.name for each in replica_notices(words, settings.redis_syncer)] == [
        "dataLayer.crossReplica"
    ]
    assert [*replica_notices(words, None)] == []
    others = parser.parse_args(["--replicas=a"])
    assert replicas_of(others, SECRET, settings.redis_syncer) == meant("--replicas=a")
    assert [*replica_notices(others, settings.redis_syncer)] == []
    assert any("syncInterval is without effect" in each for each in settings.warnings)


@pytest.mark.parametrize(
    ("argv", "secret", "message"),
    [
        (["--replicas=redis://a,b"], SECRET, "--replicas: give either one Redis server, or"),
        (["--replicas=redis://a", "--replicas=redis://b"], SECRET, "give either one Redis server"),
        (["--replicas=redis://a:b"], SECRET, "--replicas: it is not redis://"),
        (["--replicas=redis://:x@a"], SECRET, "has no password: put it into a file"),
        (["--replicas=redis://a"], b"short", "--hash-secret-file"),
        (
            ["--replicas=redis://a", "--replicas-password-file=/nowhere/x"],
            SECRET,
            "--replicas-password-file: cannot read /nowhere/x",
        ),
        (
            ["--replicas=rediss://a?ssl_ca_certs=/nowhere/x"],
            SECRET,
            "--replicas /nowhere/x: cannot be read",
        ),
        (
            [f"--replicas=rediss://a?ssl_certfile={__file__}"],
            SECRET,
            f"--replicas {__file__}: cannot be shown with the key {__file__}: PEM lib",
        ),
        (["--replicas=a", "--replicas-password-file=x"], SECRET, "it requires --replicas redis://"),
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
    assert main(["serve", *flags]) == 2
    assert "openssl rand" in capsys.readouterr().err


KV_EVENTS = """
plugins:
- {type: token-producer, parameters: {modelName: m, tokenizer: /nowhere}}
- type: precise-prefix-cache-producer
  parameters: {kvEventsConfig: {zmqEndpoint: "tcp://0.0.0.0:5557"}}
"""


OTHER_PORTS = ("--grpc-port=1", "--grpc-health-port=2", "--metrics-port=3")


@pytest.mark.parametrize("text", ["0", "-1", "65", "two", "1.5", ""])
def test_a_number_of_workers_that_cannot_be_is_refused(text, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["serve", "--endpoints-file=x", f"--workers={text}"])
    assert f"--workers: `{text}` is not a number from 1 to 64" in capsys.readouterr().err


@needs_native
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--endpoints-file=x", "--transport=grpcio"], "more than 1 requires --transport native"),
        (
            ["--pool-name=x", "--ha-enable-leader-election", "--metrics-endpoint-auth=false"],
            "requires pickers that all serve: leave out --ha-enable-leader-election",
        ),
        (["--endpoints-file=x", "--hash-secret-file=short"], "at least 16 bytes"),
        (
            ["--endpoints-file=x", f"--config-text={KV_EVENTS}"],
            "requires KV events read from each pod: leave out zmqEndpoint",
        ),
        (
            ["--endpoints-file=x", "and", "--endpoints-file=y", *OTHER_PORTS],
            "requires a single pool: start a process for each pool",
        ),
    ],
)
def test_what_several_workers_cannot_do_is_said(flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short").write_text("short")
    assert main(["serve", "--workers=2", *flags]) == 2
    assert message in capsys.readouterr().err


def test_each_worker_has_a_port_of_its_own_for_other_pods():
    settings = meant("--replicas=a,b:7000", "--replicas-port=9100")
    assert settings is not None
    siblings = Siblings(folder=Path("/run/x"), number=1, count=2)
    found = for_worker(settings, siblings)
    assert found.port == 9101
    assert [str(each) for each in found.peers] == ["a:9004", "a:9005", "b:7000", "b:7001"]
    assert for_worker(None, siblings) == ReplicaSettings(peers=(), siblings=siblings)
