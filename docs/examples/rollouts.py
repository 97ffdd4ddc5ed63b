"""Rollouts over four simulated model servers: eight of each problem at once, of four turns each.

`python docs/examples/rollouts.py 200 least-ttft` plays 200 of them with a policy by name.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator

import aiohttp

from epp.inprocess import InProcessPicker, open_picker

SERVERS, GROUP, TURNS = 4, 8, 4
SIMULATOR = (sys.executable, "-m", "model_server.simulator", "--port=0", "--speed=0.5")


@contextlib.asynccontextmanager
async def simulators(count: int) -> AsyncIterator[list[str]]:
    """Start model servers; give their `ip:port`."""
    async with contextlib.AsyncExitStack() as stack:
        targets = []
        for _ in range(count):
            pipe = asyncio.subprocess.PIPE
            server = await asyncio.create_subprocess_exec(*SIMULATOR, stdout=pipe)
            stack.push_async_callback(server.wait)
            stack.callback(server.terminate)
            assert server.stdout is not None  # noqa: S101 (it is a pipe)
            line = json.loads(await server.stdout.readline())
            targets.append(f"{line['host']}:{line['port']}")
        yield targets


async def rollout(
    picker: InProcessPicker, client: aiohttp.ClientSession, problem: str, sample: int
) -> tuple[int, int]:
    """Play one rollout; return the tokens of its prompts, and those that were cached."""
    text, tokens, cached = problem, 0, 0
    for turn in range(TURNS):
        body = {"model": "sim-model", "prompt": text, "max_tokens": 64, "seed": sample}
        async with picker.pick(body, path="/v1/completions") as pick:
            async with client.post(pick.url, data=pick.body, headers=pick.headers) as response:
                answer = await response.read()
            pick.finished(answer, status=response.status)
        said = json.loads(answer)
        tokens += said["usage"]["prompt_tokens"]
        cached += said["usage"]["prompt_tokens_details"]["cached_tokens"]
        text += said["choices"][0]["text"] + f"\nTool {turn}.{sample}: " + "4 8 15 16 " * 250
    return tokens, cached


async def main(rollouts: int, policy: str) -> None:
    """Play all rollouts at once, and print how long that took."""
    count = rollouts // GROUP
    problems = [f"Problem {n}. " + f"Given are {n} and {n + 1}. " * 150 for n in range(count)]
    async with (
        simulators(SERVERS) as servers,
        open_picker(servers, policy=policy, unreachable=(aiohttp.ClientConnectionError,)) as picker,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as client,
    ):
        began = time.monotonic()
        played = await asyncio.gather(
            *(rollout(picker, client, each, number) for each in problems for number in range(GROUP))
        )
        seconds = time.monotonic() - began
    tokens, cached = (sum(each) for each in zip(*played, strict=True))
    print(f"{policy}: {len(played)} rollouts in {seconds:.1f} s, {cached / tokens:.0%} cached")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2]))
