"""Combines the command line, the file and the environment into one checked value.

A flag overrides the file, and the file overrides the environment.
"""

import argparse
import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from model_server.extra import flags as flags_of
from model_server.settings import Life, Settings, check_apart

CPU_DEFAULTS = {"blockSize": 32, "kvCacheBytes": 256 << 20}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
Parts = (Settings, Life)
KEYS = [field.encode_name for part in Parts for field in msgspec.structs.fields(part)]


class Refused(ValueError):
    """The configuration is invalid; the message says where, and what to do."""


class Launch(msgspec.Struct, frozen=True):
    """Everything that a launch needs to know."""

    settings: Settings
    life: Life
    api_key: str | None = None
    """The API key that the engine requires."""


def size(text: str) -> int:
    """Return the bytes in a text such as 512M or 2GiB. Raises `ArgumentTypeError`."""
    found = re.fullmatch(r"(\d+)([KMG]?)(?:i?B)?", text, re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 512M or 2G")
    return int(found[1]) * UNITS[found[2].upper()]


FLAGS: dict[str, dict[str, tuple[str, Callable[[str], object], str]]] = {
    "serving": {
        "--served-model-name": (
            "NAME",
            str,
            "name in requests (default: MODEL, or the name of its folder)",
        ),
        "--host": ("HOST", str, "address to listen on (default: 127.0.0.1)"),
        "--port": ("PORT", int, "port to listen on (default: 0, any free one)"),
        "--max-model-len": ("TOKENS", int, "longest prompt and output (default: the model's)"),
        "--max-num-seqs": ("N", int, "requests that run at once (default: vLLM's)"),
        "--max-num-batched-tokens": ("N", int, "tokens in one step (default: vLLM's)"),
        "--threads": ("N", int, "compute threads on a CPU (default: 1)"),
    },
    "KV cache": {
        "--block-size": (
            "TOKENS",
            int,
            "tokens per KV block (default: 32 on a CPU, vLLM's on a GPU)",
        ),
        "--hash-algorithm": ("NAME", str, "sha256 or sha256_cbor (default: sha256)"),
        "--kv-cache-bytes": (
            "SIZE",
            size,
            "size of the cache (default: 256M on a CPU, vLLM's on a GPU)",
        ),
        "--num-gpu-blocks": ("N", int, "exact number of KV blocks; overrides --kv-cache-bytes"),
        "--kv-events-port": ("PORT", int, "publish changes of the KV cache on this port"),
        "--kv-replay-port": ("PORT", int, "send recent changes again from this port, on request"),
        "--pod-name": ("NAME", str, "name of this server in their topic (default: POD_IP:PORT)"),
    },
    "LoRA": {
        "--lora-file": ("PATH", str, "YAML file of adapters, watched while the server runs"),
        "--max-loras": ("N", int, "different adapters in one step (default: vLLM's)"),
        "--max-lora-rank": ("N", int, "highest rank of an adapter (default: vLLM's)"),
    },
    "several GPUs": {
        "--tensor-parallel-size": ("N", int, "GPUs of one node that share each layer"),
        "--pipeline-parallel-size": (
            "N",
            int,
            "groups of GPUs that share the layers (default: --nodes)",
        ),
        "--data-parallel-size": ("N", int, "engines, each with its own KV cache"),
        "--nodes": ("N", int, "nodes that serve as one (default: $LWS_GROUP_SIZE)"),
        "--node-rank": ("N", int, "rank of this node (default: $LWS_WORKER_INDEX)"),
        "--leader-address": ("HOST", str, "host of rank 0 (default: $LWS_LEADER_ADDRESS)"),
    },
    "start and stop": {
        "--probe-port": ("PORT", int, "port for /ready, /live and /status (default: none)"),
        "--start-seconds": ("S", float, "give up if vLLM is not healthy by then (default: 600)"),
        "--leave-seconds": (
            "S",
            float,
            "after SIGTERM, serve on this long, not ready (default: 0)",
        ),
        "--drain-seconds": ("S", int, "after that, time for running requests to end (default: 5)"),
        "--log-file": ("PATH", str, "the engine's log (default: stderr)"),
    },
}
"""Each flag is a key of the file in another spelling; ODD_KEYS has the exceptions."""

ODD_KEYS = {"--pod-name": "pod"}
NODES = {
    "nodes": "LWS_GROUP_SIZE",
    "nodeRank": "LWS_WORKER_INDEX",
    "leaderAddress": "LWS_LEADER_ADDRESS",
}
"""The variables that a LeaderWorkerSet sets in its pods."""


def parser(about: str) -> argparse.ArgumentParser:
    """Return the parser of the command line; its result lacks options that were not given."""
    made = argparse.ArgumentParser(
        prog="model_server.launch",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    made.add_argument(
        "model", metavar="MODEL", nargs="?", help="a folder, or a model's name on a hub"
    )
    made.add_argument(
        "--config", metavar="PATH", type=Path, help="YAML file, with flags as keys (blockSize)"
    )
    made.add_argument(
        "--device",
        choices=("auto", "cpu", "gpu"),
        help="where to compute (default: what the installed vLLM is for)",
    )
    for title, flags in FLAGS.items():
        group = made.add_argument_group(title)
        for flag, (metavar, kind, text) in flags.items():
            key = ODD_KEYS.get(flag, camel(flag))
            group.add_argument(flag, dest=key, metavar=metavar, type=kind, help=text)
    return made


def camel(flag: str) -> str:
    """Return a flag as it is spelled in the file: `--block-size` is `blockSize`."""
    first, *rest = flag.removeprefix("--").split("-")
    return first + "".join(word.capitalize() for word in rest)


def read_file(path: Path) -> dict[str, Any]:
    """Return the file's values. Raises `Refused`, which names file, place and remedy."""
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise Refused(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(given, dict):
        raise Refused(f"{path} must be a mapping, such as `model: Qwen/Qwen3-32B`")
    for key in given:
        if key not in KEYS:
            near = difflib.get_close_matches(str(key), KEYS, n=1)
            remedy = f"did you mean {near[0]}?" if near else f"write one of {', '.join(KEYS)}"
            raise Refused(f"{path}: unknown key {key}; {remedy}")
    return given


def from_environment(variables: Mapping[str, str]) -> dict[str, Any]:
    """Return what Kubernetes tells the pod: its address, and its place among several nodes."""
    said: dict[str, Any] = {}
    if variables.get("POD_IP"):
        said["podIp"] = variables["POD_IP"]
    if variables.get(NODES["nodes"], "1") != "1":
        for key, name in NODES.items():
            if name not in variables:
                raise Refused(
                    f"{NODES['nodes']} is set, but {name} is not: a LeaderWorkerSet sets both"
                )
            said[key] = variables[name] if key == "leaderAddress" else _number(name, variables)
    return said


def _number(name: str, variables: Mapping[str, str]) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise Refused(f"{name} is {variables[name]!r}, but must be a number") from None


def complete(said: dict[str, Any], installed: Callable[[], str]) -> dict[str, Any]:
    """Fill in what follows from the rest. Raises `Refused` if there is no model."""
    model = said.get("model")
    if not isinstance(model, str) or not model:
        raise Refused("no model: write a folder, or a name on a hub such as Qwen/Qwen3-32B")
    if said.get("device", "auto") == "auto":
        said["device"] = installed()
    defaults = CPU_DEFAULTS if said["device"] == "cpu" else {}
    offline = Path(model).is_dir()
    is_folder = offline or model.startswith(("/", "."))
    served = Path(model).name if is_folder else model  # vLLM: the model as it is given
    known = {"servedModelName": served, "port": 0, "offline": offline}
    return {**defaults, **known, **{key: v for key, v in said.items() if v is not None}}


def checked(said: dict[str, Any]) -> tuple[Settings, Life]:
    """Return the checked values. Raises `Refused`, which names the key."""
    if isinstance(said.get("kvCacheBytes"), str):
        try:
            said["kvCacheBytes"] = size(said["kvCacheBytes"])
        except argparse.ArgumentTypeError as error:
            raise Refused(f"kvCacheBytes: {error}") from error
    try:
        settings, life = msgspec.convert(said, Settings), msgspec.convert(said, Life)
        check_apart(settings.ports | life.ports)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise Refused(f"{where.rstrip('`')}: {what}" if where else what) from error
    except ValueError as error:
        raise Refused(str(error)) from error
    return settings, life


def api_key(extra: tuple[str, ...], variables: Mapping[str, str]) -> str | None:
    """Return the key that vLLM is started with, if any."""
    return flags_of(extra).get("--api-key") or variables.get("VLLM_API_KEY") or None


def launch(
    arguments: list[str], about: str, variables: Mapping[str, str], installed: Callable[[], str]
) -> Launch:
    """Read everything; exit with status 2 and one line if it is invalid.

    `installed` returns the device of the installed engine, for when none was chosen.
    """
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    reader = parser(about)
    flags = vars(reader.parse_args(arguments[:cut]))
    path = flags.pop("config", None)
    flags = {key: value for key, value in flags.items() if value is not None}
    try:
        said = from_environment(variables) | (read_file(path) if path else {}) | flags
        if cut < len(arguments):
            said["extra"] = arguments[cut + 1 :]
        settings, life = checked(complete(said, installed))
    except Refused as refusal:
        reader.error(str(refusal))
    return Launch(settings, life, api_key(settings.extra, variables))
