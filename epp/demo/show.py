"""The demo from start to end: both runs, the table, the report, and what may stay up."""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from epp.demo.board import Lane, shown
from epp.demo.comparison import Outcome, as_json, play, print_table
from epp.demo.figures import gained
from epp.demo.pools import Pool, Size, pool_of
from epp.demo.report import Circumstances, report
from epp.demo.stage import PolicyName, Stage, prepare, stage
from epp.demo.workload import Conversation, conversations, shipped_sections
from epp.errors import ConfigError

POLICIES: tuple[PolicyName, PolicyName] = ("round-robin", "least-ttft")


async def show(options: argparse.Namespace) -> int:
    """Run everything that the options ask for and return the exit status."""
    path = _writable(options.report)
    console = Console(highlight=False)
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="warmpick-demo-")))
        size = Size(options.servers, options.seconds, options.conversations, options.quick)
        pool = pool_of(options.engine, size, folder)
        plan = conversations(shipped_sections(), pool.load, options.seed)
        _introduce(console, pool, plan)
        before, after, ground = await _perform(console, pool, plan, folder, stack)
        where = Circumstances(pool, options.seed, _machine(), _command())
        path.write_text(report(before, after, where), encoding="utf-8")
        _conclude(console, before, after, path)
        if options.json:
            print(as_json(before, after, where.machine, where.command), flush=True)
        if options.keep:
            await _keep(console, ground, pool.model)
    return 1 if before.figures.failed or after.figures.failed else 0


async def _perform(
    console: Console,
    pool: Pool,
    plan: Sequence[Conversation],
    folder: Path,
    stack: contextlib.AsyncExitStack,
) -> tuple[Outcome, Outcome, Stage]:
    """Play the plan on two stages, one after the other; the second stays up until `stack` ends."""
    total = sum(len(conversation.turns) for conversation in plan)
    first, second = (Lane(policy, total) for policy in POLICIES)
    async with shown(console, (first, second)):
        first.phase = "preparing" if pool.prepare else "starting"
        await prepare(pool, folder)
        first.phase = "starting"
        async with stage(pool, first.policy, folder) as ground:
            before = await play(ground, pool, plan, first)
        second.phase = "starting"
        ground = await stack.enter_async_context(stage(pool, second.policy, folder))
        after = await play(ground, pool, plan, second)
    return before, after, ground


def _introduce(console: Console, pool: Pool, plan: Sequence[Conversation]) -> None:
    requests = sum(len(conversation.turns) for conversation in plan)
    console.print(
        f"[bold]{pool.servers} model servers[/bold], each {pool.title} "
        f"with room for {pool.cache_tokens:,} tokens of KV cache; behind Envoy and the picker.\n"
        f"[bold]{len(plan)} conversations[/bold], {requests} requests, arrivals over "
        f"{pool.load.seconds:g} s; the same for both policies.\n"
    )


def _conclude(console: Console, before: Outcome, after: Outcome, path: Path) -> None:
    console.print()
    print_table(console, before, after)
    console.print(f"\n[bold]{gained(before.figures, after.figures)}[/bold]")
    for outcome in (before, after):
        if outcome.first_error:
            console.print(f"[red]{outcome.policy}: {outcome.figures.failed} requests failed[/red]")
            console.print(f"  the first: {outcome.first_error}", markup=False)
    console.print(f"\nReport: {path.resolve()}", soft_wrap=True)


async def _keep(console: Console, ground: Stage, model: str) -> None:
    """Print how to talk to what is running, and wait for Ctrl-C."""
    question = {"role": "user", "content": "What is a prefix cache good for?"}
    body = json.dumps({"model": model, "stream": True, "max_tokens": 40, "messages": [question]})
    console.print("\nEverything is still up. Ask through the gateway:", style="bold")
    url = f"{ground.url}/v1/chat/completions"
    print(f"\n  curl -N -i {url} -H 'content-type: application/json' -d {shlex.quote(body)}\n")
    print(f"The picker's metrics: {ground.metrics}\nCtrl-C stops everything.", flush=True)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told.set)
    waiting, watching = asyncio.ensure_future(told.wait()), asyncio.ensure_future(ground.watch())
    try:
        await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not told.is_set():
            watching.result()
    finally:
        waiting.cancel()
        watching.cancel()
        await asyncio.gather(waiting, watching, return_exceptions=True)


def _writable(path: Path) -> Path:
    """Return where the report can go; a bare file name may move to a temporary folder."""
    if os.access(path.parent, os.W_OK | os.X_OK) and not path.is_dir():
        return path
    if path.parent != Path():
        raise ConfigError(f"cannot write the report to {path}")
    return Path(tempfile.mkdtemp(prefix="warmpick-report-")) / path.name


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def _command() -> str:
    return shlex.join(["epp", *sys.argv[1:]])
