"""The load generator as its owner sees it: an order in, a result out."""

import asyncio
import sys
from types import TracebackType
from typing import Self

import msgspec

from bench.extproc.load import Order, Result
from epp.errors import WarmpickError

_LINE_LIMIT = 1 << 26
_GRACE_S = 60.0


class MeasurementFailed(WarmpickError):
    """A request got no answer or another one than 200: the figures would mean nothing."""


class Generator:
    """A child process that sends requests. An async context manager."""

    async def __aenter__(self) -> Self:
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.extproc.load"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_LIMIT,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._child.returncode is None:
            self._child.kill()
        await self._child.wait()

    async def run(self, order: Order) -> Result:
        """Carry out an order. Raises `MeasurementFailed` unless every answer was a 200."""
        stdin, stdout = self._child.stdin, self._child.stdout
        if stdin is None or stdout is None:
            raise MeasurementFailed("the load generator was started without pipes")
        stdin.write(msgspec.json.encode(order) + b"\n")
        try:
            async with asyncio.timeout(order.seconds + _GRACE_S):
                line = await stdout.readline()
        except TimeoutError:
            raise MeasurementFailed(f"answers are still missing after {_GRACE_S:g} s") from None
        if not line:
            raise MeasurementFailed("the load generator ended")
        result = msgspec.json.decode(line, type=Result)
        if result.failed or not result.requests:
            raise MeasurementFailed(f"answers by status: {result.statuses} to {order}")
        return result
