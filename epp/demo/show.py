"""The demo from start to end: both runs, the table, the report."""

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

from epp.demo.board import RunProgress, live_board
from epp.demo.comparison import RunResult, as_json, play, print_table
from epp.demo.figures import gain_sentence
from epp.demo.pools import DemoPool, Size, choose_pool
from epp.demo.report import Setup, report
from epp.demo.testbed import PolicyName, Testbed, prepare, start_testbed
from epp.demo.workload import Conversation, conversations, shipped_sections
from epp.errors import ConfigError
from epp.printable import printable
from epp.system.temporary import temporary_folder_wanted

POLICIES: tuple[PolicyName, PolicyName] = ("round-robin", "least-ttft")


async def run_demo(options: argparse.Namespace) -> int:
    """Run the demo that the options ask for; return its exit status."""
    path = _writable(options.report)
    console = Console(highlight=False)
    async with contextlib.AsyncExitStack() as stack:
        with temporary_folder_wanted():
            made = tempfile.TemporaryDirectory(prefix="warmpick-demo-")
        folder = Path(stack.enter_context(made))
        size = Size(options.servers, options.seconds, options.conversations, options.quick)
        pool = choose_pool(options.engine, size, folder)
        plan = conversations(shipped_sections(), pool.workload, options.seed)
        _introduce(console, pool, plan)
        before, after, testbed = await _perform(console, pool, plan, folder, stack)
        where = Setup(pool, options.seed, _machine(), _command())
        path.write_text(report(before, after, where), encoding="utf-8")
        _conclude(console, before, after, path)
        if options.json:
            print(as_json(before, after, where.machine, where.command), flush=True)
        if options.keep:
            await _keep(console, testbed, pool.model)
    return 1 if before.figures.failed or after.figures.failed else 0


async def _perform(
    console: Console,
    pool: DemoPool,
    plan: Sequence[Conversation],
    folder: Path,
    stack: contextlib.AsyncExitStack,
) -> tuple[RunResult, RunResult, Testbed]:
    """Play the plan on two testbeds in turn; the second stays up until `stack` is closed."""
    total = sum(len(conversation.turns) for conversation in plan)
    first, second = (RunProgress(policy, total) for policy in POLICIES)
    async with live_board(console, (first, second)):
        first.phase = "preparing" if pool.prepare else "starting"
        await prepare(pool, folder)
        first.phase = "starting"
        async with start_testbed(pool, first.policy, folder) as testbed:
            before = await play(testbed, pool, plan, first)
        second.phase = "starting"
        testbed = await stack.enter_async_context(start_testbed(pool, second.policy, folder))
        after = await play(testbed, pool, plan, second)
    return before, after, testbed


def _introduce(console: Console, pool: DemoPool, plan: Sequence[Conversation]) -> None:
    requests = sum(len(conversation.turns) for conversation in plan)
    console.print(
        f"[bold]{pool.servers} model servers[/bold], each {pool.title} "
        f"with room for {pool.cache_tokens:,} tokens of KV cache; behind Envoy and the picker.\n"
        f"[bold]{len(plan)} conversations[/bold], {requests} requests, arrivals over "
        f"{pool.workload.seconds:g} s; the same for both policies.\n"
    )


def _conclude(console: Console, before: RunResult, after: RunResult, path: Path) -> None:
    console.print()
    print_table(console, before, after)
    console.print(f"\n[bold]{gain_sentence(before.figures, after.figures)}[/bold]")
    for result in (before, after):
        if result.first_error:
            console.print(f"[red]{result.policy}: {result.figures.failed} requests failed[/red]")
            console.print(f"  the first: {printable(result.first_error)}", markup=False)
    console.print(f"\nReport: {path.resolve()}", soft_wrap=True)


async def _keep(console: Console, testbed: Testbed, model: str) -> None:
    """Print how to send a request to the testbed, and wait for Ctrl-C or SIGTERM."""
    question = {"role": "user", "content": "What is a prefix cache good for?"}
    body = json.dumps({"model": model, "stream": True, "max_tokens": 40, "messages": [question]})
    console.print("\nEverything is still up. Ask through the gateway:", style="bold")
    url = f"{testbed.url}/v1/chat/completions"
    print(f"\n  curl -N -i {url} -H 'content-type: application/json' -d {shlex.quote(body)}\n")
    print(f"The picker's metrics: {testbed.metrics}\nCtrl-C stops everything.", flush=True)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await testbed.while_up(stop.wait())


def _writable(path: Path) -> Path:
    """Return where to write the report: a bare name may move to a temporary folder.

    Raises `ConfigError` for a place that was asked for and cannot be written, and if there is no
    temporary folder.
    """
    if path.is_dir():
        raise ConfigError(f"cannot write the report to {path}: it is a folder")
    if os.access(path.parent, os.W_OK | os.X_OK) and (
        os.access(path, os.W_OK) or not path.exists()
    ):
        return path
    if path.parent != Path():
        raise ConfigError(f"cannot write the report to {path}")
    with temporary_folder_wanted():
        return Path(tempfile.mkdtemp(prefix="warmpick-report-")) / path.name


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def _command() -> str:
    return shlex.join(["epp", *sys.argv[1:]])
