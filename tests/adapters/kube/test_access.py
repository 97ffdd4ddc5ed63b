"""Reading the API server's address and credentials, as users and clusters provide them."""

import asyncio
import base64
import json
import socket
import stat
import sys
from datetime import datetime, timedelta
from types import SimpleNamespace

import aiohttp
import pytest
import yaml
from kubernetes.aio.config import incluster_config
from structlog.testing import capture_logs

from epp.adapters.kube.access import ApiSession, goes_direct, load
from epp.adapters.kube.api_connection import ApiConnection, ApiUnreachable
from epp.adapters.kube.kube_settings import KubeAccess
from epp.errors import ConfigError
from epp.protocol.kube.watch import ApiRefused
from tests.adapters.kube.rig import connected
from tests.kubeapi import FakeKubernetes, faults

PATH = "/api/v1/namespaces/default/pods"
READS = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]


@pytest.fixture
async def api():
    async with FakeKubernetes(tls=True) as made:
        yield made


async def asked_as(api, access):
    """Ask through `access`; return who the API took us for."""
    connection = ApiConnection(access)
    await connection.open()
    try:
        await connection.request("GET", PATH, seconds=5)
    finally:
        await connection.close()
    return api.requests[-1].user


def named(path, **environ):
    return KubeAccess(kubeconfig=str(path), environ=environ)


async def test_kubeconfigs_are_taken_in_their_order(api, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".kube").mkdir()
    for name in (".kube/config", "one", "two"):
        api.kubeconfig(tmp_path / name, user={"token": api.token(name, READS)})
    one, two, others = tmp_path / "one", tmp_path / "two", tmp_path / "others"
    parts = yaml.safe_load(two.read_text())
    others.write_text(yaml.safe_dump(parts | {"users": []}))
    two.write_text(yaml.safe_dump(parts | {"clusters": []}))
    assert await asked_as(api, KubeAccess(environ={})) == ".kube/config"
    assert await asked_as(api, KubeAccess(environ={"KUBECONFIG": f"/nowhere:{one}:"})) == "one"
    assert await asked_as(api, named(f"{two}:{others}", KUBECONFIG=str(one))) == "two"


async def test_a_dead_peer_is_noticed_after_25_seconds(api, tmp_path):
    session = ApiSession(await load(named(api.kubeconfig(tmp_path / "config"))))
    headers = {"Authorization": f"Bearer {api.admin_token}"}
    watch = ("GET", f"{PATH}?watch=1", headers, None)
    response = await session.send(watch, aiohttp.ClientTimeout(total=10))
    assert response.connection is not None
    transport = response.connection.transport
    assert transport is not None
    peer = transport.get_extra_info("socket")
    probes = [socket.TCP_KEEPIDLE, *[socket.TCP_KEEPINTVL] * 3]
    assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sum(peer.getsockopt(socket.IPPROTO_TCP, each) for each in probes) == 25
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == 3
    assert peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
    await session.retire()
    assert not transport.is_closing()  # it is in use
    response.close()
    await session.release()


async def test_a_token_file_with_a_line_end(api, tmp_path):
    (tmp_path / "token").write_text(api.token("me", READS) + "\n")
    path = api.kubeconfig(tmp_path / "config", user={"tokenFile": "token"})
    assert await asked_as(api, named(path)) == "me"


async def test_a_client_certificate(api, tmp_path):
    api.token("me", READS)
    issued = api.authority.issue("me")
    (tmp_path / "crt").write_bytes(issued.certificate)
    (tmp_path / "key").write_bytes(issued.key)
    user = {"client-certificate": "crt", "client-key": "key"}
    path = api.kubeconfig(tmp_path / "config", user=user)
    assert await asked_as(api, named(path)) == "me"


PLUGIN = """#!{python}
import json, os
assert json.loads(os.environ["KUBERNETES_EXEC_INFO"])["kind"] == "ExecCredential"
print(json.dumps({answer}))
"""


def plugin(folder, **status):
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": status,
    }
    path = folder / "plugin"
    path.write_text(PLUGIN.format(python=sys.executable, answer=json.dumps(answer)))
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return {"exec": {"command": str(path), "apiVersion": answer["apiVersion"]}}


async def test_a_credential_plugin_is_asked_again_when_its_token_is_refused(api, tmp_path):
    first = api.token("me", READS)
    async with connected(api, tmp_path, **plugin(tmp_path, token=first)) as connection:
        await connection.request("GET", PATH, seconds=5)
        api.revoke(first)
        plugin(tmp_path, token=api.token("me again", READS))
        await connection.request("GET", PATH, seconds=5)
    assert [ask.user for ask in api.requests if ask.user] == ["me", "me again"]


async def test_a_credential_plugin_that_fails_is_asked_again(api, tmp_path):
    first = api.token("me", READS)
    async with connected(api, tmp_path, **plugin(tmp_path, token=first)) as connection:
        api.revoke(first)
        (tmp_path / "plugin").write_text("#!/bin/sh\nexit 1\n")
        with pytest.raises(ApiRefused, match="Unauthorized"):
            await connection.request("GET", PATH, seconds=5)
        with pytest.raises(ConfigError, match="the credential plug-in gave no credentials"):
            await load(named(tmp_path / "kubeconfig"))
        plugin(tmp_path, token=api.token("me again", READS))
        await connection.request("GET", PATH, seconds=5)
    assert api.requests[-1].user == "me again"


async def test_a_pod_is_its_service_account_whose_token_is_rotated(api, tmp_path):
    first = api.token("system:serviceaccount:default:epp", READS)
    environ = api.in_cluster(tmp_path, first)
    connection = ApiConnection(KubeAccess(environ=environ, service_account=tmp_path))
    await connection.open()
    try:
        await connection.request("GET", PATH, seconds=5)
        api.revoke(first)
        (tmp_path / "token").write_text(api.token("rotated", READS))
        await connection.request("GET", PATH, seconds=5)
    finally:
        await connection.close()
    users = [ask.user for ask in api.requests if ask.user]
    assert users == ["system:serviceaccount:default:epp", "rotated"]


async def test_a_token_file_that_is_gone_is_reported_once_and_the_last_token_serves(
    api, tmp_path, monkeypatch
):
    at_once = SimpleNamespace(datetime=datetime, timedelta=lambda **_: timedelta())
    monkeypatch.setattr(incluster_config, "datetime", at_once)  # it is read for each request
    token = api.token("pod", READS)
    environ = api.in_cluster(tmp_path, token)
    connection = ApiConnection(KubeAccess(environ=environ, service_account=tmp_path))
    await connection.open()
    with capture_logs() as logs:
        for text in (None, None, token, None):
            (tmp_path / "token").unlink(missing_ok=True)
            if text is not None:
                (tmp_path / "token").write_text(text)
            await connection.request("GET", PATH, seconds=5)
    await connection.close()
    assert [each["event"] for each in logs] == ["kube.token_unreadable"] * 2


async def test_a_kubeconfig_that_is_named_wins_over_the_service_account(api, tmp_path):
    environ = api.in_cluster(tmp_path, api.token("pod", READS))
    path = api.kubeconfig(tmp_path / "config", user={"token": api.token("me", READS)})
    access = KubeAccess(kubeconfig=str(path), environ=environ, service_account=tmp_path)
    assert await asked_as(api, access) == "me"


async def test_a_server_of_another_authority_is_not_trusted(api, tmp_path):
    path = api.kubeconfig(tmp_path / "config")
    async with FakeKubernetes(tls=True) as other:
        theirs = yaml.safe_load(other.kubeconfig(tmp_path / "other").read_text())
    ours = yaml.safe_load(path.read_text())
    ours["clusters"][0]["cluster"]["certificate-authority-data"] = theirs["clusters"][0]["cluster"][
        "certificate-authority-data"
    ]
    path.write_text(yaml.safe_dump(ours))
    with pytest.raises(ApiUnreachable, match="certificate"):
        await asked_as(api, named(path))
    assert api.requests == []


@pytest.mark.parametrize(
    ("url", "no_proxy", "direct"),
    [
        ("https://10.96.0.1:443", "", False),
        ("https://10.96.0.1:443", "localhost, 10.96.0.0/12,.svc", True),
        ("https://10.96.0.1:443", "10.97.0.0/16,10.96.0.1", True),
        ("https://10.96.0.1:443", "10.97.0.0/16,example.com,fd00::/8", False),
        ("https://10.111.255.255", "10.100.7.7/12", True),  # net.ParseCIDR masks the address
        ("https://[fd00::1]:443", "10.0.0.0/8,fd00::/8", True),
        ("https://[fd00::1]:443", "10.0.0.0/8", False),
        ("https://api.example.com:6443", "0.0.0.0/0", False),
        ("https://api.example.com:6443", "10.0.0.0/8,.example.com", True),
        ("https://api.example.com:6443", "api.example.com:6443", True),
        ("https://10.96.0.1:443", "10.96.0.1:443", True),
        ("https://10.96.0.1:443", "10.96.0.1:80", False),
        ("https://api.example.com", "api.example.com:443", True),
        ("http://api.example.com", "api.example.com:443", False),
        ("https://[fd00::1]:443", "[fd00::1]:443", True),
        ("https://127.1.2.3:6443", "", True),
        ("https://[::1]:6443", "", True),
        ("https://localhost:6443", "", True),
    ],
)
def test_addresses_that_no_proxy_is_for(url, no_proxy, direct):
    """golang.org/x/net/http/httpproxy, `Config.NoProxy`, which client-go goes by."""
    for name in ("NO_PROXY", "no_proxy"):
        assert goes_direct(url, {name: no_proxy}) == direct


async def test_what_no_proxy_is_for_is_asked_directly(api, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # discard: nobody is there
    path = api.kubeconfig(tmp_path / "config", user={"token": api.token("me", READS)})
    assert await asked_as(api, named(path)) == "me"


async def test_other_addresses_are_asked_through_the_proxy(tmp_path, monkeypatch):
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    asked = []

    async def proxy(reader, writer):
        asked.append(await reader.readline())
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        (tmp_path / "config").write_text(f"{CONTEXT}{CLUSTER.format('https://192.0.2.1:6443')}")
        connection = ApiConnection(named(tmp_path / "config"))
        await connection.open()
        with pytest.raises(ApiUnreachable):
            await connection.request("GET", PATH, seconds=5)
        await connection.close()
    assert asked[0] == b"CONNECT 192.0.2.1:6443 HTTP/1.1\r\n"


async def test_unknown_credentials_are_refused(api, tmp_path):
    path = api.kubeconfig(tmp_path / "config", user={"token": "nobody's"})
    with pytest.raises(ApiRefused, match="Unauthorized") as raised:
        await asked_as(api, named(path))
    assert raised.value.code == 401


async def test_a_server_that_is_not_there(api, tmp_path):
    path = api.kubeconfig(tmp_path / "config")
    await api.down()
    with pytest.raises(ApiUnreachable, match="Connect call failed"):
        await asked_as(api, named(path))
    await api.up()


CONTEXT = """
current-context: a
contexts: [{name: a, context: {cluster: b, user: c}}]
users: [{name: c, user: {token: t}}]
"""
CLUSTER = "clusters: [{{name: b, cluster: {{server: '{}'}}}}]"
BROKEN = [
    ("clusters: [", "no access to a Kubernetes API"),
    ("", "no access to a Kubernetes API"),
    ("[]", "no access to a Kubernetes API"),
    ("apiVersion: v1\nkind: Config\n", "Expected key current-context"),
    (f"{CONTEXT}clusters: []", "no access to a Kubernetes API"),
    *(
        (f"{CONTEXT}{CLUSTER.format(server)}", "API: .*URL")
        for server in (
            *("10.0.0.1:6443", "localhost:8080", "https://", "https://[fd00::1:6443"),
            *("https://api:64430000", "https://api..example", f"https://{'a' * 64}.example"),
        )
    ),
    (f"{CONTEXT}clusters: [{{name: b, cluster: {{server: 5}}}}]", "no access to a Kubernetes API"),
    (
        f"{CONTEXT}{CLUSTER.format('me:secret@api:6443')}",
        r"URL: \.\.\.@api:6443$",
    ),
]


@pytest.mark.parametrize(("text", "said"), BROKEN)
async def test_a_kubeconfig_that_cannot_be_used(text, said, tmp_path):
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigError, match=said):
        await load(named(tmp_path / "config"))


async def test_no_way_to_an_api_server(tmp_path):
    with pytest.raises(ConfigError, match="not in a pod, and there is no kubeconfig at /nowhere"):
        await load(named("/nowhere"))
    for path in ("~nobody.here/config", tmp_path):
        with pytest.raises(ConfigError, match="no access to a Kubernetes API"):
            await load(named(path))
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(ConfigError, match="API: there is no kubeconfig at /nowhere"):
        await load(KubeAccess(kubeconfig="/nowhere", environ=environ))
    with pytest.raises(ConfigError, match="token file does not exist"):
        await load(KubeAccess(environ=environ, service_account=tmp_path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the client's
async def test_an_issuer_that_breaks_off(api, tmp_path):
    tokens = ".".join(base64.b64encode(b'{"exp":1}').decode() for _ in range(3))  # long expired
    there = {"idp-issuer-url": api.url, "client-id": "c", "client-secret": "s"}
    known = {"id-token": tokens, "refresh-token": "r"}
    user = {"auth-provider": {"name": "oidc", "config": there | known}}
    path = api.kubeconfig(tmp_path / "config", user=user)
    api.fail(faults.dropped(), times=None)
    with pytest.raises(ConfigError, match="API: Server disconnected"):
        await load(named(path))


async def test_a_certificate_file_that_is_none(tmp_path, api):
    path = api.kubeconfig(tmp_path / "config")
    document = yaml.safe_load(path.read_text())
    cluster = document["clusters"][0]["cluster"]
    del cluster["certificate-authority-data"]
    cluster["certificate-authority"] = "ca"
    (tmp_path / "ca").write_text("no certificate")
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigError, match="no access to a Kubernetes API"):
        await ApiConnection(named(path)).open()
