"""How many wrong predictions it takes the picker to notice that a server lost its cache."""

from collections.abc import Awaitable, Callable

from bench.accuracy.client import Player, gateway_client
from bench.accuracy.engines import BLOCK, Ports
from bench.accuracy.observation import Observation
from bench.accuracy.servers import Servers

MOST = 12
Forget = Callable[[Servers, Ports], Awaitable[None]]


async def noticed_after(player: Player, servers: Servers, forget: Forget) -> int:
    """Let a server forget everything, then go on with conversations that it knew, one by one.

    Returns how many requests it got up to the last one that was predicted to hit at least a
    block more than it did; 0 where there was none.
    """
    ports = servers.ports[0]
    known = [each for each in player.idle if each.endpoint == ports.target and not each.over]
    await forget(servers, ports)
    async with gateway_client() as client:
        seen = [await player.ask(client, conversation) for conversation in known[:MOST]]
    sent = [each for each in seen if each.endpoint == ports.target]
    wrong = [place for place, each in enumerate(sent, start=1) if _too_much(each)]
    return max(wrong, default=0)


def _too_much(seen: Observation) -> bool:
    return seen.cached is not None and seen.predicted - seen.cached >= BLOCK


async def reset(servers: Servers, ports: Ports) -> None:
    """Empty the cache of a server that goes on running: nothing but its answers tells of it."""
    await servers.reset((ports,))


async def restart(servers: Servers, ports: Ports) -> None:
    """Kill a server and start it again where it was."""
    await servers.kill(ports)
    await servers.start(ports)
