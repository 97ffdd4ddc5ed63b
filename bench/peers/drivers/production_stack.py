"""production-stack's `PrefixAwareRouter` and `SessionRouter` in process, named as argument."""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from vllm_router.routers.routing_logic import PrefixAwareRouter, SessionRouter

WORKERS = 4
_ROUTERS = {
    "prefixaware": PrefixAwareRouter,
    "session": partial(SessionRouter, session_key="x-session-id"),
}


async def picks(name: str, steps: list[dict[str, Any]]) -> list[int]:
    router = _ROUTERS[name]()
    endpoints = [SimpleNamespace(url=f"http://10.0.0.{number + 1}") for number in range(WORKERS)]
    numbers = {each.url: number for number, each in enumerate(endpoints)}
    picked = []
    for step in steps:
        asked = SimpleNamespace(headers={"x-session-id": step["session"]})
        body = {"messages": step["chat"]}
        picked.append(numbers[await router.route_request(endpoints, {}, {}, asked, body)])
    return picked


if __name__ == "__main__":
    Path(sys.argv[-1]).write_text(json.dumps(asyncio.run(picks(sys.argv[1], json.load(sys.stdin)))))
