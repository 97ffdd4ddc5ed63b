"""Access to the API server: its address and credentials, and HTTP sessions that use them."""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import proxy_bypass

import aiohttp
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, InClusterConfigLoader
from kubernetes.aio.config.kube_config import load_kube_config

from epp.adapters.kube.kube_settings import KubeAccess
from epp.errors import ConfigError
from epp.model.endpoint import target_of
from epp.printable import without_user
from epp.system.host_names import host_of

_UNREADABLE = (ConfigException, ValueError, TypeError, KeyError, AttributeError, RuntimeError)
"""What `kubernetes.aio` and `pathlib` raise for a malformed kubeconfig, account or path."""
_LOAD_SECONDS = 30.0
"""Limit for reading a configuration; credential plug-ins are processes of their own."""
_KEEPALIVE = (
    (socket.SO_KEEPALIVE, socket.SOL_SOCKET, 1),
    (socket.TCP_KEEPIDLE, socket.IPPROTO_TCP, 10),
    (socket.TCP_KEEPINTVL, socket.IPPROTO_TCP, 5),
    (socket.TCP_KEEPCNT, socket.IPPROTO_TCP, 3),
    (socket.TCP_USER_TIMEOUT, socket.IPPROTO_TCP, 25_000),
)
"""Socket options by which the kernel reports a dead peer after 25 seconds.

Keepalive covers a connection that sends nothing, TCP_USER_TIMEOUT (tcp(7), in milliseconds)
one with data that is not acknowledged.
"""


async def load(access: KubeAccess) -> Configuration:
    """Read address and credentials, tokens included. Raises `ConfigError`."""
    configuration = Configuration()
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            await _load(access, configuration)
        direct = goes_direct(configuration.host, access.environ)
    except TimeoutError:
        raise ConfigError(f"a credential plug-in took more than {_LOAD_SECONDS:g} s") from None
    except (*_UNREADABLE, OSError, aiohttp.ClientError, yaml.YAMLError) as error:
        raise ConfigError(f"no access to a Kubernetes API: {error}") from error
    # Python 3.13 sets VERIFY_X509_STRICT; CA certificates of many clusters lack extensions that
    # RFC 5280 §4.2 requires, and Go's clients accept them.
    configuration.disable_strict_ssl_verification = True
    if direct:
        configuration.client_session_kwargs = {"trust_env": False}
    return configuration


def goes_direct(url: str, environ: Mapping[str, str]) -> bool:
    """Return whether the address in a URL needs no proxy, as in Go (`httpproxy.Config`).

    These are the addresses of this machine, and those of the names, ports and networks in NO_PROXY,
    of which aiohttp knows only names. Raises `ValueError` for what is not the URL of a server.
    """
    host = host_of(url)
    if not host:
        raise ValueError(
            f"the server's address is not a usable http or https URL: {without_user(url)}"
        )
    no_proxy = environ.get("NO_PROXY") or environ.get("no_proxy", "")
    port = urlsplit(url).port or (443 if url.lower().startswith("https:") else 80)
    if host == "localhost" or proxy_bypass(target_of(host, port), {"no": no_proxy}):
        return True
    networks = []
    for each in no_proxy.split(","):
        with suppress(ValueError):  # a name
            networks.append(ip_network(each.strip(), strict=False))
    try:
        address = ip_address(host)
    except ValueError:  # ditto
        return False
    return address.is_loopback or any(address in each for each in networks)


async def _load(access: KubeAccess, configuration: Configuration) -> None:
    named = access.kubeconfig or access.environ.get("KUBECONFIG", "")
    in_pod = bool(access.environ.get(SERVICE_HOST_ENV_NAME))
    if in_pod and not named:
        InClusterConfigLoader(
            token_filename=str(access.service_account / "token"),
            cert_filename=str(access.service_account / "ca.crt"),
            environ=access.environ,
        ).load_and_set(configuration)
        return
    loader = await load_kube_config(
        config_file=_kubeconfigs(named or "~/.kube/config", in_pod=in_pod),
        client_configuration=configuration,
        persist_config=False,
    )
    # It only logs what a plug-in fails with; then requests would be anonymous, and get a 403.
    plugin = "exec" in (loader._user or ())  # noqa: SLF001 (its `refresh_token` reads it too)
    if plugin and not (configuration.api_key or configuration.cert_file):
        raise ConfigException("the credential plug-in gave no credentials")


def _kubeconfigs(named: str, *, in_pod: bool) -> str:
    """Return the files that exist, separated by colons. Raises `ConfigException` if none does."""
    paths = [Path(each).expanduser() for each in named.split(":") if each]
    existing = [str(path) for path in paths if path.exists()]
    if not existing:
        places = ", ".join(map(str, paths))
        where = "" if in_pod else "not in a pod, and "
        raise ConfigException(f"{where}there is no kubeconfig at {places}")
    return ":".join(existing)


class ApiSession:
    """HTTP connections with one set of credentials.

    `retire` closes them when the last request ends, not before: aiohttp raises errors of other
    types when a session is closed while it connects. Raises `ConfigError` for certificates that
    cannot be used.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        try:
            self._rest: RESTClientObject = _Rest(configuration)
        except (OSError, ValueError) as error:
            raise ConfigError(f"no access to a Kubernetes API: {error}") from error
        self._requests = 0
        self._retired = False

    async def send(
        self, request: tuple[str, str, dict[str, str], object], limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send `request`: method, path, headers and document. A response must be `release`d."""
        method, path, headers, document = request
        self._requests += 1
        try:
            wrapped = await self._rest.request(
                method,
                f"{self.configuration.host}{path}",
                headers,
                document,
                _request_timeout=limits,
            )
        except BaseException:
            await self.release()
            raise
        response: aiohttp.ClientResponse = wrapped.response
        return response

    async def release(self) -> None:
        """Record the end of one request."""
        self._requests -= 1
        if self._retired and not self._requests:
            await self._rest.close()

    async def retire(self) -> None:
        """Close the connections when the last request ends; no request may follow."""
        self._retired = True
        if not self._requests:
            await self._rest.close()

    async def close(self) -> None:
        """Close all connections at once; requests in flight fail."""
        await self._rest.close()


class _Rest(RESTClientObject):
    """The HTTP client of `kubernetes.aio`, on sockets with `_KEEPALIVE`."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, socket_factory=_keepalive_socket)


def _keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    created = socket.socket(family, kind, protocol)
    created.setblocking(False)  # noqa: FBT003 (the standard library's signature)
    for option, level, value in _KEEPALIVE:
        created.setsockopt(level, option, value)
    return created
