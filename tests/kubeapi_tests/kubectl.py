"""kubectl, where it is on PATH."""

import asyncio
import shutil

import pytest
import yaml

from tests.kubeapi import FakeKubernetes

KUBECTL = shutil.which("kubectl")


def needs_kubectl(what):
    """Mark tests that run it."""
    reason = f"NOT TESTED: {what}: there is no kubectl on PATH; install it"
    return pytest.mark.skipif(KUBECTL is None, reason=reason)


class Kubectl:
    """Runs it against one server."""

    def __init__(self, api: FakeKubernetes, folder) -> None:
        self.folder = folder
        self.kubeconfig = api.kubeconfig(folder / "kubeconfig")

    async def __call__(self, *arguments: str, body=None) -> str:
        """What it prints; it must succeed."""
        code, said, told = await self.run(*arguments, body=body)
        assert code == 0, told
        return said

    async def run(self, *arguments: str, body=None) -> tuple[int, str, str]:
        """Exit status, output, errors. `body` is fed as YAML to -f -."""
        assert KUBECTL is not None
        process = await asyncio.create_subprocess_exec(
            KUBECTL,
            "--kubeconfig",
            str(self.kubeconfig),
            f"--cache-dir={self.folder}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        given = None if body is None else yaml.safe_dump(body).encode()
        out, err = await asyncio.wait_for(process.communicate(given), 60)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()
