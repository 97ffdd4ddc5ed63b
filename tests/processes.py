"""`epp` as a process of its own, for tests of what it is started with."""

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import sys

SECONDS = 30
PORTS = ("grpc-port", "grpc-health-port", "metrics-port")
HERE = ("--bind-address=127.0.0.1", *(f"--{name}=0" for name in PORTS))
"""Where a test's picker listens: of a flag that is given twice the last counts."""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["epp.cli.main", "epp.app.pools", "epp.adapters.kube.kube_discovery"])
"""A process that has imported what most pickers import: that takes longer than all else."""


@contextlib.contextmanager
def no_descriptor_left():
    """Let this process open no file or socket."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.asynccontextmanager
async def picker(arguments, folder, **environ):
    """Start a picker in a folder, whose `kubeconfig` is its own; give the lines of its log."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", *arguments, *HERE),
        cwd=folder,
        env=environment(folder, environ),
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


def environment(folder, environ):
    return os.environ | {"KUBECONFIG": str(folder / "kubeconfig")} | environ


@contextlib.asynccontextmanager
async def forked_picker(arguments, folder, **environ):
    """Like `picker`, for tests of many: it is forked from a process that is ready to be one."""
    log, written = FORKS.Pipe(duplex=False)
    argv = [*arguments, *HERE]
    given = (written, argv, folder, environment(folder, environ))
    process = FORKS.Process(target=_run, args=given, daemon=True)
    lines = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(os.dup(log.fileno()), "rb")
    )
    log.close()
    try:
        await asyncio.to_thread(process.start)
        written.close()
        async with asyncio.timeout(SECONDS):
            yield (json.loads(line) async for line in lines)
    finally:
        process.kill()
        await lines.read()  # until the pipe is closed
        process.join()
        process.close()
        transport.close()


def _run(log, argv, folder, environ):
    from epp.cli.main import main  # noqa: PLC0415 (the process that is forked has it)

    os.dup2(log.fileno(), sys.stderr.fileno())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.exit(main(argv))


async def said(lines, event):
    """Wait for a line of the log."""
    return await anext(line async for line in lines if line["event"] == event)
