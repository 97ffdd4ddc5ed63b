"""A process of its own that is the cluster: an API server, and pods that answer with metrics.

Prints one JSON line that says where it is, then does what it reads from stdin, one JSON object a
line, and prints a line when each is done. Pods have addresses of the loopback network and share
one port, where one server answers for all of them.
"""

import asyncio
import itertools
import sys
import time
from pathlib import Path

import msgspec

from tests.kubeapi import FakeKubernetes

SENT = "warmpick.io/sent"
"""The label that says when a pod was changed, in nanoseconds of the machine's monotonic clock."""
CRDS = sorted((Path(__file__).parents[2] / "manifests" / "crds").glob("inference*.yaml"))
LABELS = {"app": "vllm"}
_VARIABLES = 130
"""Of a container, so that a pod is the 10 KB that real ones are."""
_PAGE = (
    b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0\n"
    b'vllm:cache_config_info{block_size="16",num_gpu_blocks="9000"} 1\n'
)


class Order(msgspec.Struct, frozen=True):
    """Change this many pods, one after the other, at `rate` a second (0: as fast as it goes)."""

    events: int
    rate: float = 0.0


def pod(number: int, sent: int) -> dict[str, object]:
    """A pod of realistic size."""
    env = [{"name": f"VARIABLE_{each}", "value": "x" * 32} for each in range(_VARIABLES)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"pod-{number}", "labels": {**LABELS, SENT: str(sent)}},
        "spec": {"containers": [{"name": "vllm", "image": "vllm", "env": env}]},
        "status": {
            "podIP": f"127.1.{number // 250}.{number % 250 + 1}",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pool(port: int) -> dict[str, object]:
    """The InferencePool `pool`."""
    return {
        "apiVersion": "inference.networking.k8s.io/v1",
        "kind": "InferencePool",
        "metadata": {"name": "pool"},
        "spec": {
            "selector": {"matchLabels": LABELS},
            "targetPorts": [{"number": port}],
            "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
        },
    }


async def _metrics(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request with the same page."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(_PAGE)}\r\n\r\n"
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(head.encode() + _PAGE)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def _obey(api: FakeKubernetes, order: Order, numbers: "itertools.cycle[int]") -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    for _ in range(order.events):
        sent = {"metadata": {"labels": {SENT: str(time.monotonic_ns())}}}
        api.patch("Pod", f"pod-{next(numbers)}", sent)
        due += 1 / order.rate if order.rate else 0
        await asyncio.sleep(max(0, due - loop.time()) if order.rate else 0)


async def main(pods: int, kubeconfig: Path) -> None:
    """Be a cluster until stdin ends."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    host = "0.0.0.0"  # noqa: S104 (a pod's address is any of the loopback network's)
    metrics = await asyncio.start_server(_metrics, host, 0, backlog=4096)
    async with FakeKubernetes(crds=CRDS) as api, metrics:
        api.put(pool(metrics.sockets[0].getsockname()[1]))
        for number in range(pods):
            api.put(pod(number, time.monotonic_ns()))
        api.kubeconfig(kubeconfig)
        _say({"url": api.url})
        numbers = itertools.cycle(range(pods))
        async for line in stdin:
            await _obey(api, msgspec.json.decode(line, type=Order), numbers)
            _say({"done": True})


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
