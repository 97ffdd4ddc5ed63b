"""The command: flags, start, the one line on stdout, and a clean end on SIGTERM."""

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress

import msgspec
import uvloop
from aiohttp import web

from model_server.simulator.adapters import parse_modules
from model_server.simulator.kv_config import parse_config
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
    runner, host, port = await start(server)
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
    """Turn flags into settings; exits with status 2 and a message when they make no sense."""
    reader = parser()
    given = reader.parse_args(arguments)
    for name, least in _LEAST.items():
        if not getattr(given, name) >= least:
            reader.error(f"--{name.replace('_', '-')} must be at least {least:g}")
    if not given.speed > 0:
        reader.error("--speed must be positive")
    try:
        kv_events = parse_config(given.kv_events_config)
    except ValueError as error:
        reader.error(f"--kv-events-config: {error}")
    try:
        lora_modules = parse_modules(given.lora_modules)
    except ValueError as error:
        reader.error(f"--lora-modules: {error}")
    return Settings(
        host=given.host,
        port=given.port,
        name=given.name,
        served_model_name=given.served_model_name,
        runtime_loras=os.environ.get(RUNTIME_LORAS, "").lower() in {"1", "true"},
        responses_store=os.environ.get(RESPONSES_STORE, "") == "1",
        lora_modules=lora_modules,
        limits=_limits(given),
        speed=_speed(given),
        output_tokens=given.output_tokens,
        tokens_per_chunk=given.tokens_per_chunk,
        prompt_tokens_details=not given.no_prompt_tokens_details,
        seed=given.seed,
        faults=given.faults,
        strain=_strain(given),
        drain_seconds=given.drain_seconds,
        kv_events=kv_events,
    )


def _limits(given: argparse.Namespace) -> Limits:
    return Limits(
        block_size=given.block_size,
        num_gpu_blocks=given.num_gpu_blocks_override,
        max_num_batched_tokens=given.max_num_batched_tokens,
        max_num_seqs=given.max_num_seqs,
        max_model_len=given.max_model_len,
        max_loras=given.max_loras,
    )


def _strain(given: argparse.Namespace) -> Strain:
    return Strain(
        late_above=given.late_page_above,
        late_seconds=given.late_page_seconds,
        no_page=given.no_metrics_page,
        shed_above=given.shed_above,
        shed_retry_after=given.shed_retry_after,
        cold_requests=given.cold_requests,
        cold_seconds=given.cold_seconds,
    )


def _speed(given: argparse.Namespace) -> Speed:
    return Speed(
        step_ms=given.step_ms,
        prefill_us_per_token=given.prefill_us_per_token,
        attention_ns=given.attention_ns,
        decode_us_per_seq=given.decode_us_per_seq,
        decode_ns_per_context_token=given.decode_ns_per_context_token,
        factor=given.speed,
    )


def parser() -> argparse.ArgumentParser:
    """Return the reader of the command line."""
    made = argparse.ArgumentParser(
        prog="python -m model_server.simulator",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for title, flags in _FLAGS.items():
        group = made.add_argument_group(title)
        for flag, (kind, default, text) in flags.items():
            usual = "off" if default is None else repr(default)
            group.add_argument(
                flag, type=kind, default=default, metavar="X", help=f"{text} (default: {usual})"
            )
    made.add_argument("--lora-modules", nargs="*", default=[], metavar="NAME", help=_LORA_HELP)
    for switch, text in _SWITCHES.items():
        made.add_argument(switch, action="store_true", help=text)
    return made


_LEAST = {
    **dict.fromkeys(("block_size", "max_num_batched_tokens", "max_num_seqs", "max_model_len"), 1),
    **dict.fromkeys(("max_loras", "output_tokens", "tokens_per_chunk"), 1),
    "num_gpu_blocks_override": 2,
    **dict.fromkeys(("step_ms", "prefill_us_per_token", "attention_ns", "decode_us_per_seq"), 0),
    **dict.fromkeys(("decode_ns_per_context_token", "drain_seconds"), 0),
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
_FLAGS: dict[str, dict[str, tuple[type, object, str]]] = {
    "server": {
        "--host": (str, "127.0.0.1", "address to listen on"),
        "--port": (int, 8000, "port to listen on; 0 takes a free one"),
        "--name": (str, "", "value of the response header x-sim-name; empty: none is sent"),
        "--served-model-name": (str, "sim-model", "name of the model in requests"),
        "--drain-seconds": (float, 5.0, "how long running requests may take to end after SIGTERM"),
        "--tokens-per-chunk": (int, 1, "tokens per streamed event"),
        "--output-tokens": (int, 256, "mean length of an answer that no other limit ends"),
        "--seed": (int, 0, "seed of the generated text; equal seeds give equal text"),
    },
    "engine, named as in vLLM": {
        "--block-size": (int, 16, "tokens in a KV block"),
        "--num-gpu-blocks-override": (int, 8192, "number of KV blocks, including the null block"),
        "--max-num-batched-tokens": (int, 8192, "token budget of one step"),
        "--max-num-seqs": (int, 256, "requests that run at once"),
        "--max-model-len": (
            int,
            131072,
            "longest sequence, in tokens; few KV blocks limit it further",
        ),
        "--max-loras": (int, 1, "different adapters in one step"),
        "--kv-events-config": (str, "{}", "where KV events are published, as JSON"),
    },
    "speed": {
        "--step-ms": (float, 6.0, "fixed cost of one step, ms"),
        "--prefill-us-per-token": (float, 40.0, "cost of a prompt token, us"),
        "--attention-ns": (float, 1.75, "further cost of a prompt token per token before it, ns"),
        "--decode-us-per-seq": (float, 20.0, "cost of a decoding sequence in a step, us"),
        "--decode-ns-per-context-token": (float, 56.0, "further cost per token of its context, ns"),
        "--speed": (float, 1.0, "divide all these times by this number"),
    },
    "strain": {
        "--late-page-above": (int, None, "answer /metrics late while more requests are unfinished"),
        "--late-page-seconds": (float, 5.0, "how late that is, in seconds"),
        "--shed-above": (int, None, "answer 503 while this many requests are unfinished"),
        "--cold-requests": (int, 0, "delay this many requests, the first ones"),
        "--cold-seconds": (float, 10.0, "by this many seconds each, as if kernels were compiled"),
    },
}
