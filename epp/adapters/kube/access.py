"""Where the API server is and who we are there: a service account in a pod, or a kubeconfig."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio.client.configuration import Configuration
from kubernetes.aio.client.rest import RESTClientObject
from kubernetes.aio.config.config_exception import ConfigException
from kubernetes.aio.config.incluster_config import SERVICE_HOST_ENV_NAME, InClusterConfigLoader
from kubernetes.aio.config.kube_config import load_kube_config

from epp.adapters.kube.kube_settings import KubeAccess
from epp.errors import ConfigError

_UNREADABLE = (ConfigException, ValueError, TypeError, KeyError, AttributeError)
"""What the package raises for a file that is not as it should be."""
_LOAD_SECONDS = 30.0
"""What a credential plug-in may take."""
_KEEPALIVE = (
    (socket.SO_KEEPALIVE, socket.SOL_SOCKET, 1),
    (socket.TCP_KEEPIDLE, socket.IPPROTO_TCP, 10),
    (socket.TCP_KEEPINTVL, socket.IPPROTO_TCP, 5),
    (socket.TCP_KEEPCNT, socket.IPPROTO_TCP, 3),
    (socket.TCP_USER_TIMEOUT, socket.IPPROTO_TCP, 25_000),
)
"""A peer whose kernel is gone is noticed after 25 seconds, without a byte sent by us."""


async def load(access: KubeAccess) -> Configuration:
    """Read the configuration anew, tokens included. Raises `ConfigError`."""
    configuration = Configuration()
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            await _load(access, configuration)
    except TimeoutError:
        raise ConfigError(f"a credential plug-in took more than {_LOAD_SECONDS:g} s") from None
    except (*_UNREADABLE, OSError, yaml.YAMLError) as error:
        raise ConfigError(f"no access to a Kubernetes API: {error}") from error
    # As Go has it: many clusters' own authorities lack what RFC 5280 asks of them.
    configuration.disable_strict_ssl_verification = True
    return configuration


async def _load(access: KubeAccess, configuration: Configuration) -> None:
    named = access.kubeconfig or access.environ.get("KUBECONFIG", "")
    if not named and access.environ.get(SERVICE_HOST_ENV_NAME):
        InClusterConfigLoader(
            token_filename=str(access.service_account / "token"),
            cert_filename=str(access.service_account / "ca.crt"),
            environ=access.environ,
        ).load_and_set(configuration)
        return
    await load_kube_config(
        config_file=_kubeconfigs(named or "~/.kube/config"),
        client_configuration=configuration,
        persist_config=False,
    )


def _kubeconfigs(named: str) -> str:
    """Leave out what does not exist; at least one must."""
    paths = [Path(each).expanduser() for each in named.split(":") if each]
    there = [str(path) for path in paths if path.exists()]
    if not there:
        places = ", ".join(map(str, paths))
        raise ConfigException(f"not in a pod, and there is no kubeconfig at {places}")
    return ":".join(there)


class ApiSession:
    """Connections with one set of credentials; once retired, closed when the last request ends.

    Not before: a session that is closed while it connects fails in ways of its own. Raises
    `ConfigError` for certificates that cannot be used.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        try:
            self._rest: RESTClientObject = _Rest(configuration)
        except (OSError, ValueError) as error:
            raise ConfigError(f"no access to a Kubernetes API: {error}") from error
        self._users = 0
        self._retired = False

    async def send(
        self, request: tuple[str, str, dict[str, str], object], limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        """Send method, path, headers and document. Whoever gets an answer must `leave`."""
        method, path, headers, document = request
        self._users += 1
        try:
            answer = await self._rest.request(
                method,
                f"{self.configuration.host}{path}",
                headers,
                document,
                _request_timeout=limits,
            )
        except BaseException:
            await self.leave()
            raise
        response: aiohttp.ClientResponse = answer.response
        return response

    async def leave(self) -> None:
        """Be done with a request."""
        self._users -= 1
        if self._retired and not self._users:
            await self._rest.close()

    async def retire(self) -> None:
        """Send no more."""
        self._retired = True
        if not self._users:
            await self._rest.close()

    async def close(self) -> None:
        """Break off what is under way."""
        await self._rest.close()


class _Rest(RESTClientObject):
    """The package's HTTP client, on sockets that notice a dead peer."""

    def _create_connector(self) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(limit=0, ssl=self.ssl_context, socket_factory=_watchful_socket)


def _watchful_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)  # noqa: FBT003 (the standard library's signature)
    for option, level, value in _KEEPALIVE:
        made.setsockopt(level, option, value)
    return made
