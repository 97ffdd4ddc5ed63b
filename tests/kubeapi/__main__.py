"""`python -m tests.kubeapi KUBECONFIG [MANIFEST...]`: the API for a process of its own.

Writes a kubeconfig once it listens, and serves until it is told to end.
"""

import argparse
import asyncio
import signal
from pathlib import Path

import yaml

from tests.kubeapi.fake import FakeKubernetes


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.kubeapi", description=__doc__)
    parser.add_argument("kubeconfig", type=Path, help="written; the administrator's")
    parser.add_argument(
        "manifests", type=Path, nargs="*", help="objects that are there, CRDs first"
    )
    parser.add_argument("--tls", action="store_true", help="serve https")
    return parser.parse_args()


async def _serve(arguments: argparse.Namespace) -> None:
    ended = asyncio.Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, ended.set)
    async with FakeKubernetes(tls=arguments.tls) as api:
        for path in arguments.manifests:
            for value in yaml.safe_load_all(path.read_text()):
                if value is not None:
                    api.put(value)
        written = api.kubeconfig(arguments.kubeconfig.with_suffix(".part"))
        written.rename(arguments.kubeconfig)
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(_serve(_arguments()))
