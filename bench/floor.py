"""The floor: the product's transport and codec around a handler that only parses the body.

    python -m bench.floor --port 9002 --target 127.0.0.1:8000

What the product costs beyond this is its policy, its model and its accounting.
"""

import argparse
import asyncio
import json
import signal
import time
from typing import get_args

import uvloop

from bench.extproc.fixed import FixedExchange
from epp.adapters.extproc.contract import ExtProcSettings
from epp.adapters.extproc.transports import Transport, server_class
from epp.system.memory import keep_freed_memory


async def serve(port: int, target: str, transport: Transport) -> None:
    """Answer `target` to everybody on 127.0.0.1 until SIGTERM; one JSON line says the port."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = server_class(transport)(
        lambda _now: FixedExchange(target),
        time.monotonic,
        ExtProcSettings(address="127.0.0.1", port=port),
    )
    await server.start()
    print(json.dumps({"event": "listening", "port": server.port}), flush=True)
    await stop.wait()
    await server.stop(grace=1.0)


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="the floor of the benchmark extproc")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--target", required=True, help="ip:port that every request goes to")
    parser.add_argument("--transport", choices=get_args(Transport), default="grpcio")
    options = parser.parse_args()
    keep_freed_memory()  # as the product does
    uvloop.run(serve(options.port, options.target, options.transport))


if __name__ == "__main__":
    main()
