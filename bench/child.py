"""Modules that run as processes of their own: told lines that they answer, or asked once."""

import asyncio
import os
import sys
from typing import Self, TypeVar

import msgspec

from epp.errors import WarmpickError

T = TypeVar("T")


class MeasurementFailed(WarmpickError):
    """Something was not answered as it must be: the figures would mean nothing."""


class Child:
    """The process of `python -m MODULE`, killed at the end. An async context manager.

    Lines that it writes have at most `line_limit` bytes. `arguments` come after the module.
    """

    def __init__(self, module: str, line_limit: int, *arguments: str) -> None:
        self._module = module
        self._arguments = arguments
        self._line_limit = line_limit

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", self._module, *self._arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=self._line_limit,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def tell(self, line: bytes) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")

    async def answer(self) -> bytes:
        """Return the next line of its stdout. Raises `MeasurementFailed` if it has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise MeasurementFailed(f"{self._module} ended")
        return line


async def printed(module: str, kind: type[T], **variables: str) -> T:
    """Return what `python -m MODULE` prints, as JSON. Raises `MeasurementFailed` if it fails."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        env=os.environ | variables,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await child.communicate()
    if child.returncode:
        raise MeasurementFailed(f"{module} ended with status {child.returncode}")
    return msgspec.json.decode(said, type=kind)
