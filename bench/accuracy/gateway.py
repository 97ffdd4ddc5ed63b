"""A picker and an Envoy in front of the servers, fresh for each identity."""

import contextlib
from collections.abc import AsyncIterator

from bench.accuracy.identities import Identity, configuration, endpoints
from bench.accuracy.servers import Servers
from bench.envoy import EnvoySettings, start_envoy
from bench.extproc.pickers import Product
from bench.extproc.stack import TRANSPORT
from epp.protocol.extproc.observation import Observation


@contextlib.asynccontextmanager
async def gateway(
    servers: Servers, identity: Identity, observation: Observation | None = None
) -> AsyncIterator[str]:
    """Start both; the URL for clients. The picker shows its decisions and has seen no request.

    With an `observation` response bodies are `STREAMED`, and observed to their end as it says.
    """
    file = servers.log_dir / f"endpoints-{identity}.yaml"
    file.write_text(endpoints(servers.ports, identity), encoding="utf-8")
    flags = ["--config-text", configuration(identity, servers.engine)]
    flags += ["--debug-headers", "--log-format=json"]
    if observation:
        flags.append(f"--observe-responses={observation}")
    product = Product(file, TRANSPORT, *flags)
    settings = EnvoySettings(
        epp_port=product.grpc_port,
        endpoints=servers.targets,
        response_body_mode="STREAMED" if observation else "FULL_DUPLEX_STREAMED",
    )
    async with contextlib.AsyncExitStack() as stack:
        picker = await product.start(servers.log_dir, f"epp-{identity}")
        stack.push_async_callback(picker.stop, 1)
        envoy = await start_envoy(settings, log_dir=servers.log_dir, name=f"envoy-{identity}")
        stack.push_async_callback(envoy.stop, 1)
        yield settings.url
