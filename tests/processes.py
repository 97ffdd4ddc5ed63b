"""`epp` as a process of its own, for tests of what it is started with."""

import asyncio
import contextlib
import json
import os
import sys

SECONDS = 30
PORTS = ("grpc-port", "grpc-health-port", "metrics-port")
HERE = ("--bind-address=127.0.0.1", *(f"--{name}=0" for name in PORTS))
"""Where a test's picker listens: of a flag that is given twice the last counts."""


@contextlib.asynccontextmanager
async def picker(arguments, folder, **environ):
    """Start a picker in a folder, whose `kubeconfig` is its own; give the lines of its log."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", *arguments, *HERE),
        cwd=folder,
        env=os.environ | {"KUBECONFIG": str(folder / "kubeconfig")} | environ,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(SECONDS):
            yield (json.loads(line) async for line in process.stderr)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have ended
            process.kill()
        await process.communicate()  # until the pipe is closed, too


async def said(lines, event):
    """Wait for a line of the log."""
    return await anext(line async for line in lines if line["event"] == event)
