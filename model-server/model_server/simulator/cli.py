"""The command: flags, start, the one line on stdout, and a clean end on SIGTERM."""

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, TypeVar

import msgspec
import uvloop
from aiohttp import web

from model_server.simulator.adapters import parse_modules
from model_server.simulator.kv_config import MAX_PORT, parse_config
from model_server.simulator.server import Server
from model_server.simulator.settings import Limits, Settings, Speed
from model_server.simulator.strain import Strain

RUNTIME_LORAS = "VLLM_ALLOW_RUNTIME_LORA_UPDATING"
RESPONSES_STORE = "VLLM_ENABLE_RESPONSES_API_STORE"
_ABOUT = """\
An OpenAI-compatible server that schedules, caches and reports like vLLM v1, without a model.
Prints one JSON line, {"event": "listening", "host": ..., "port": ...}, when it is ready.
On SIGTERM or SIGINT it stops accepting, finishes running requests and exits with 0."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until a signal; returns the exit status."""
    settings = parse(arguments)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings))
    return 0


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    server = Server(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    engine = asyncio.create_task(server.engine.run(), name="engine")
    engine.add_done_callback(lambda _: stop.set())
    try:
        runner, host, port = await start(server)
    except OSError as error:
        place = error.filename or f"{settings.host}:{settings.port}"
        raise SystemExit(f"simulator: {place}: {error.strerror}") from None
    line = {"event": "listening", "host": host, "port": port}
    print(msgspec.json.encode(line).decode(), flush=True)
    await stop.wait()
    await runner.cleanup()
    engine.cancel()
    with suppress(asyncio.CancelledError):
        await engine


async def start(server: Server) -> tuple[web.AppRunner, str, int]:
    """Listen; returns the runner to clean up and the address. The engine is not started."""
    settings = server.settings
    runner = web.AppRunner(
        server.application(),
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=settings.drain_seconds,
    )
    await runner.setup()
    await web.TCPSite(runner, settings.host, settings.port, backlog=1024).start()
    host, port = runner.addresses[0][:2]
    return runner, host, port


def parse(arguments: Sequence[str] | None = None) -> Settings:
    """Turn flags into settings; exit with status 2 and a message if they are invalid."""
    reader = parser()
    given = reader.parse_args(arguments)
    for flag, least in _LEAST.items():
        if not getattr(given, _field(flag)) >= least:
            reader.error(f"{flag} must be at least {least:g}")
    if not 0 <= given.port <= MAX_PORT:  # of a greater one sockets take the lower 16 bits
        reader.error(f"--port must be 0 to {MAX_PORT}")
    if not given.factor > 0:
        reader.error("--speed must be positive")
    try:
        kv_events = parse_config(given.kv_events_config)
    except ValueError as error:
        reader.error(f"--kv-events-config: {error}")
    try:
        lora_modules = parse_modules(given.lora_modules)
    except ValueError as error:
        reader.error(f"--lora-modules: {error}")
    return replace(
        _made(Settings, given),
        runtime_loras=os.environ.get(RUNTIME_LORAS, "").lower() in {"1", "true"},
        responses_store=os.environ.get(RESPONSES_STORE, "") == "1",
        lora_modules=lora_modules,
        limits=_made(Limits, given),
        speed=_made(Speed, given),
        strain=_made(Strain, given),
        prompt_tokens_details=not given.no_prompt_tokens_details,
        kv_events=kv_events,
    )


Part = TypeVar("Part", Settings, Limits, Speed, Strain)


def _made(part: type[Part], given: argparse.Namespace) -> Part:
    """Make a part of the settings of the flags that are called as its fields are."""
    named: dict[str, Any] = vars(given)
    return part(**{each.name: named[each.name] for each in fields(part) if each.name in named})


def _field(flag: str) -> str:
    """Return the field of the settings that a flag sets."""
    return _ODD_FIELDS.get(flag, flag.removeprefix("--").replace("-", "_"))


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m model_server.simulator",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = (Settings, Limits, Speed, Strain)
    defaults = {each.name: each.default for part in parts for each in fields(part)}
    for title, flags in _FLAGS.items():
        group = made.add_argument_group(title)
        for flag, text in flags.items():
            field = _field(flag)
            default = defaults.get(field, "{}")  # the latter of KV events, which are JSON
            usual = "off" if default is None else repr(default)
            group.add_argument(
                flag,
                dest=field,
                type=int if default is None else type(default),
                default=default,
                metavar="X",
                help=f"{text} (default: {usual})",
            )
    made.add_argument("--lora-modules", nargs="*", default=[], metavar="NAME", help=_LORA_HELP)
    for switch, text in _SWITCHES.items():
        made.add_argument(switch, dest=_field(switch), action="store_true", help=text)
    return made


_ODD_FIELDS = {
    "--num-gpu-blocks-override": "num_gpu_blocks",
    "--speed": "factor",
    "--late-page-above": "late_above",
    "--late-page-seconds": "late_seconds",
    "--no-metrics-page": "no_page",
}
_LEAST = {
    "--num-gpu-blocks-override": 2,
    **dict.fromkeys(("--block-size", "--max-num-batched-tokens", "--max-num-seqs"), 1),
    **dict.fromkeys(("--max-model-len", "--max-loras", "--output-tokens", "--tokens-per-chunk"), 1),
    **dict.fromkeys(("--step-ms", "--prefill-us-per-token", "--attention-ns"), 0),
    **dict.fromkeys(("--decode-us-per-seq", "--decode-ns-per-context-token", "--drain-seconds"), 0),
}
"""With less of one of these nothing would be answered, or sooner than it was asked."""
_LORA_HELP = "adapters to serve under these names: NAME, NAME=PATH, or JSON with name and path"
_SWITCHES = {
    **dict.fromkeys(
        ("--enable-prefix-caching", "--enable-prompt-tokens-details", "--enable-lora"),
        "always on; accepted because vLLM has this flag",
    ),
    "--no-prompt-tokens-details": "do not report cached tokens, which is vLLM's default",
    "--faults": "obey the request header x-sim-fault: refuse | hang | status=500 | "
    "slow-headers=SECONDS | die-after=CHUNKS",
    "--no-metrics-page": "answer /metrics with 404",
    "--shed-retry-after": "send retry-after with the 503 of --shed-above",
}
_FLAGS: dict[str, dict[str, str]] = {
    "server": {
        "--host": "address to listen on",
        "--port": "port to listen on; 0 takes a free one",
        "--name": "value of the response header x-sim-name; empty: none is sent",
        "--served-model-name": "name of the model in requests",
        "--drain-seconds": "how long running requests may take to end after SIGTERM",
        "--tokens-per-chunk": "tokens per streamed event",
        "--output-tokens": "mean length of an answer that no other limit ends",
        "--seed": "seed of the generated text; equal seeds give equal text",
    },
    "engine, named as in vLLM": {
        "--block-size": "tokens in a KV block",
        "--num-gpu-blocks-override": "number of KV blocks, including the null block",
        "--max-num-batched-tokens": "token budget of one step",
        "--max-num-seqs": "requests that run at once",
        "--max-model-len": "longest sequence, in tokens; few KV blocks limit it further",
        "--max-loras": "different adapters in one step",
        "--kv-events-config": "where KV events are published, as JSON",
    },
    "speed": {
        "--step-ms": "fixed cost of one step, ms",
        "--prefill-us-per-token": "cost of a prompt token, us",
        "--attention-ns": "further cost of a prompt token per token before it, ns",
        "--decode-us-per-seq": "cost of a decoding sequence in a step, us",
        "--decode-ns-per-context-token": "further cost per token of its context, ns",
        "--speed": "divide all these times by this number",
    },
    "strain": {
        "--late-page-above": "answer /metrics late while more requests are unfinished",
        "--late-page-seconds": "how late that is, in seconds",
        "--shed-above": "answer 503 while this many requests are unfinished",
        "--cold-requests": "delay this many requests, the first ones",
        "--cold-seconds": "by this many seconds each, as if kernels were compiled",
    },
}
"""What each flag says; its default is that of its field."""
