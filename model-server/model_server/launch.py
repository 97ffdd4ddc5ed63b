"""Starts `vllm serve` with the settings that Warmpick needs, and takes it down again.

`python -m model_server.launch MODEL [flags] [-- arguments of vllm serve]`. Once `/health` answers,
one JSON line is on stdout: {"event": "listening", "host": ..., "port": ...}. SIGTERM and Ctrl-C let
running requests finish for --drain-seconds, then every process of the engine ends.

Exit status: 0 after SIGTERM, 130 after Ctrl-C, 1 when the engine ended by itself or did not start
in time, 2 for a wrong flag, 3 when vLLM is not installed.
"""

import argparse
import asyncio
import re
import signal
import socket
import sys
from collections import deque
from pathlib import Path

import msgspec

from model_server.engine import (
    HOW_TO_GET_VLLM,
    VLLM_COMMAND,
    Died,
    Engine,
    address_of,
    installed_device,
    is_installed,
    reserve_port,
)
from model_server.flags import Settings, environment, serve_arguments

LAST_LINES = 25
KILL_SECONDS = 10.0
"""What vLLM gets to take its processes down after the drain, before they are killed."""
CPU_DEFAULTS = {"block_size": 32, "kv_cache_bytes": 256 << 20}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Listening(msgspec.Struct, frozen=True, tag_field="event", tag="listening"):
    """The line on stdout."""

    host: str
    port: int


class Launch(msgspec.Struct, frozen=True):
    """What the command line asks for besides the engine's own settings."""

    settings: Settings
    start_seconds: float
    log: Path | None


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 2G")
    return int(found[1]) * UNITS[found[2].upper()]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="model_server.launch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="folder or hub name of the model")
    add("--served-model-name", metavar="NAME", help="default: the last part of MODEL")
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    add("--port", type=int, default=0, help="0, the default, takes a free one")
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="default: as installed")
    add("--block-size", type=int, metavar="TOKENS", help="default: 32 on a CPU, vLLM's on a GPU")
    add("--kv-cache-bytes", type=_bytes, metavar="SIZE", help="default: 256M on a CPU")
    add("--num-gpu-blocks", type=int, metavar="N", help="exact number of KV blocks")
    add("--max-model-len", type=int, metavar="TOKENS", help="default: the model's")
    add("--max-num-seqs", type=int, metavar="N")
    add("--max-num-batched-tokens", type=int, metavar="N")
    add("--threads", type=int, default=1, help="compute threads on a CPU (default: %(default)s)")
    add("--kv-events-port", type=int, metavar="PORT", help="publish changes of the KV cache here")
    add("--kv-replay-port", type=int, metavar="PORT", help="send the last changes again here")
    add("--pod-name", metavar="NAME", help="for the topic of the changes (default: the host's)")
    add("--drain-seconds", type=int, default=5, metavar="S", help="default: %(default)s")
    add("--start-seconds", type=float, default=600.0, metavar="S", help="give up after this long")
    add("--log-file", type=Path, metavar="PATH", help="the engine's log; default: stderr")
    return parser


def parse(arguments: list[str]) -> Launch:
    """Read the command line into values; exit with status 2 when it makes no sense."""
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = _parser()
    options = parser.parse_args(arguments[:cut])
    device = installed_device() if options.device == "auto" else options.device
    for name, value in CPU_DEFAULTS.items():
        if device == "cpu" and getattr(options, name) is None:
            setattr(options, name, value)
    try:
        settings = Settings(
            model=options.model,
            served_model_name=options.served_model_name or Path(options.model).name,
            device=device,
            host=options.host,
            port=options.port,
            block_size=options.block_size,
            kv_cache_bytes=options.kv_cache_bytes,
            num_gpu_blocks=options.num_gpu_blocks,
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            threads=options.threads,
            kv_events_port=options.kv_events_port,
            kv_replay_port=options.kv_replay_port,
            pod=options.pod_name or socket.gethostname(),
            offline=Path(options.model).is_dir(),
            drain_seconds=options.drain_seconds,
            extra=tuple(arguments[cut + 1 :]),
        )
    except ValueError as refusal:
        parser.error(str(refusal))
    return Launch(settings, options.start_seconds, options.log_file)


def _say(text: str) -> None:
    print(f"model_server.launch: {text}", file=sys.stderr, flush=True)


def _last_lines(log: Path | None) -> str:
    if log is None:
        return "its log is above"
    with log.open(errors="replace") as lines:
        return f"the end of {log}:\n" + "".join(deque(lines, LAST_LINES)).rstrip()


async def _serve(launch: Launch, engine: Engine) -> int:
    settings = launch.settings
    try:
        async with asyncio.timeout(launch.start_seconds):
            await engine.healthy(address_of(settings.host, settings.port))
        line = msgspec.json.encode(Listening(settings.host, settings.port))
        print(line.decode(), flush=True)
        await engine.ended()
    except TimeoutError:
        _say(f"vLLM is not healthy after {launch.start_seconds:g} s; {_last_lines(launch.log)}")
    except Died as death:
        _say(f"vLLM ended by itself with status {death.status}; {_last_lines(launch.log)}")
    return 1


async def run(launch: Launch, command: tuple[str, ...] = VLLM_COMMAND) -> int:
    """Start, serve, stop; return the exit status. `command` stands where `vllm serve` does."""
    settings = launch.settings
    try:
        with reserve_port(settings.host, settings.port) as reserved:
            settings = msgspec.structs.replace(settings, port=reserved.getsockname()[1])
            launch = msgspec.structs.replace(launch, settings=settings)
            engine = await Engine.start(
                [*command, *serve_arguments(settings)], environment(settings), launch.log
            )
            return await _until_asked(launch, engine)
    except OSError as refusal:
        _say(f"cannot start: {refusal}")
        return 1


async def _until_asked(launch: Launch, engine: Engine) -> int:
    asked = _stop_signals()
    serving = asyncio.ensure_future(_serve(launch, engine))
    try:
        await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
        return asked.result() if asked.done() else serving.result()
    finally:
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        if not await engine.stop(launch.settings.drain_seconds + KILL_SECONDS):
            _say("vLLM did not end in time and was killed")


def _stop_signals() -> asyncio.Future[int]:
    """Return what the first SIGTERM or SIGINT resolves with the exit status that it means."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[int] = loop.create_future()

    def ask(status: int) -> None:
        if not asked.done():
            asked.set_result(status)

    loop.add_signal_handler(signal.SIGTERM, ask, 0)
    loop.add_signal_handler(signal.SIGINT, ask, 130)
    return asked


def main(arguments: list[str] | None = None) -> int:
    """Launch what the command line asks for."""
    launch = parse(sys.argv[1:] if arguments is None else arguments)
    if not is_installed():
        print(HOW_TO_GET_VLLM, file=sys.stderr)
        return 3
    return asyncio.run(run(launch))


if __name__ == "__main__":
    sys.exit(main())
