"""The traffic of the benchmark: conversations of several clients, drawn, or from a trace.

What is drawn is like Mooncake's conversation trace: prompts of 13,000 tokens on average and of a
few thousand at the median, answers of 350, every fifth request goes on with an earlier one.
"""

from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from epp.replay.traffic.calls import Call, Run, Trace, ordered
from epp.replay.traffic.workloads.arrivals import Arrivals, arriving
from epp.replay.traffic.workloads.catalog import CatalogEntry
from epp.replay.traffic.workloads.distributions import Distribution

CONVERSATIONS = CatalogEntry(
    system=450,
    context=Distribution("lognormal", 12_500, 20_000, 400, 110_000),
    new=Distribution("lognormal", 600, 600, 50, 5000),
    output=Distribution("normal", 350, 230, 10, 1100),
    turns=Distribution("lognormal", 1.3, 0.8, 1, 8),
    gap=Distribution("lognormal", 120, 60, 30, 400),
    longest=125_000,
)


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """One client: conversations at `rate` requests a second, from second `since` to `until`.

    Rates are counted as if no request waited for another one's answer. `like` is what its
    conversations are made of; they are for `adapters` LoRA adapters in turn, 0 for none.
    """

    name: str
    rate: float
    until: float
    since: float = 0.0
    priority: int = 0
    like: CatalogEntry = CONVERSATIONS
    adapters: int = 0


def drawn(clients: Iterable[Client], seed: int) -> Trace:
    """Draw the conversations of clients, who share none of their tokens."""
    calls: list[Call] = []
    token = session = 0
    for number, client in enumerate(clients):
        mine = _conversations(client, seed * 1000 + number)
        places = {place: len(calls) + rank for rank, (place, _) in enumerate(mine)}
        for _, call in mine:
            calls.append(
                replace(
                    call,
                    at=call.at + client.since,
                    prompt=_apart(call.prompt, token),
                    response=_apart(call.response, token),
                    session=call.session + session,
                    after=None if call.after is None else places[call.after],
                    tenant=client.name,
                    priority=client.priority,
                    adapter=_adapter(client, call.session),
                )
            )
        token = 1 + max(run.token for call in calls for run in (*call.prompt, *call.response))
        session = 1 + max(call.session for call in calls)
    return Trace(name="conversations like Mooncake's, drawn", calls=ordered(calls))


def _conversations(client: Client, seed: int) -> Sequence[tuple[int, Call]]:
    """Return the calls of one client that come before it stops, each with its number."""
    seconds = client.until - client.since
    sessions = max(4, round(1.2 * client.rate * seconds))
    calls = client.like.calls(sessions, None, seed)
    trace = arriving(Trace(name=client.name, calls=calls), Arrivals(rate=client.rate), seed)
    return [(place, call) for place, call in enumerate(trace.calls) if call.at < seconds]


def _adapter(client: Client, session: int) -> str:
    return f"adapter-{session % client.adapters}" if client.adapters else ""


def _apart(runs: Sequence[Run], by: int) -> tuple[Run, ...]:
    return tuple(Run(run.token + by, run.length) for run in runs)
