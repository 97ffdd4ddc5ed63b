"""A picker and an Envoy in front of the servers, fresh for each identity."""

import contextlib
import sys
from collections.abc import AsyncIterator

from bench.accuracy.identities import Identity, configuration, endpoints
from bench.accuracy.servers import Servers
from bench.envoy import EnvoySettings, start_envoy
from epp.gateway.processes import free_port, spawn
from epp.protocol.extproc.observation import Observation

_READY_SECONDS = 30.0


@contextlib.asynccontextmanager
async def gateway(
    servers: Servers, identity: Identity, observation: Observation | None = None
) -> AsyncIterator[str]:
    """Start both; the URL for clients. The picker shows its decisions and has seen no request.

    With an `observation` response bodies are `STREAMED`, and observed to their end as it says.
    """
    grpc_port, health_port, metrics_port, port, admin_port = (free_port() for _ in range(5))
    file = servers.log_dir / f"endpoints-{identity}.yaml"
    file.write_text(endpoints(servers.ports, identity), encoding="utf-8")
    argv = (
        *(sys.executable, "-m", "epp", "serve", "--bind-address=127.0.0.1"),
        *("--config-text", configuration(identity, servers.engine)),
        f"--endpoints-file={file}",
        f"--grpc-port={grpc_port}",
        f"--grpc-health-port={health_port}",
        f"--metrics-port={metrics_port}",
        *("--secure-serving=false", "--debug-headers", "--log-format=json"),
        *((f"--observe-responses={observation}",) if observation else ()),
    )
    settings = EnvoySettings(
        listen_port=port,
        admin_port=admin_port,
        epp_port=grpc_port,
        endpoints=servers.targets,
        response_body_mode="STREAMED" if observation else "FULL_DUPLEX_STREAMED",
    )
    async with contextlib.AsyncExitStack() as stack:
        picker = await spawn(f"epp-{identity}", argv, log_dir=servers.log_dir)
        stack.push_async_callback(picker.stop, 1)
        await picker.wait_http(f"http://127.0.0.1:{metrics_port}/readyz", _READY_SECONDS)
        envoy = await start_envoy(settings, log_dir=servers.log_dir, name=f"envoy-{identity}")
        stack.push_async_callback(envoy.stop, 1)
        yield settings.url
