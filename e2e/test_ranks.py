"""Data-parallel ranks behind one port, each an endpoint: which of them a request is sent to."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.corridor import CHAT, Corridor, Plan, chat, corridor, decision
from e2e.echo import Echo

RANK = "x-data-parallel-rank"
REQUESTS = 40


async def split_into_ranks(gateway: Corridor, target: str, size: int) -> None:
    """Replace all endpoints by the ranks of one server."""
    host, port = target.split(":")
    server = {"name": "dp", "address": host, "port": int(port), "dataParallelSize": size}
    draft = gateway.endpoints_path.with_suffix(".draft")
    draft.write_text(json.dumps({"endpoints": [server]}))
    draft.replace(gateway.endpoints_path)
    await gateway.metric_becomes(size, "llm_d_epp_ready_endpoints")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(echo: Echo, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Corridor]:
    directory: Path = tmp_path_factory.mktemp("ranks")
    async with corridor(Plan(others=(echo.target,)), directory) as made:
        await split_into_ranks(made, echo.target, 2)
        yield made


async def test_the_picker_names_a_rank_and_the_client_cannot(gateway: Corridor, echo: Echo) -> None:
    for number in range(REQUESTS):
        answer = await gateway.post(CHAT, chat(f"{number} " * 20), **{RANK: "9"})
        assert answer.status == 200
        assert decision(answer)["endpoint"] == echo.target
    assert {seen.headers[RANK] for seen in echo.seen[-REQUESTS:]} == {"0", "1"}


async def test_a_conversation_stays_on_its_rank(gateway: Corridor, echo: Echo) -> None:
    for number in range(8):
        opening = f"conversation {number}: " + "words " * 2000
        await gateway.post(CHAT, chat(opening))
        answer = await gateway.post(CHAT, chat(opening, "an answer", "another question"))
        first, second = (seen.headers[RANK] for seen in echo.seen[-2:])
        assert first == second
        assert decision(answer)["predicted_cached_tokens"] > 1000
