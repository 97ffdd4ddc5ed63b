"""The load generator as its owner sees it: an order in, a result out."""

import asyncio

import msgspec

from bench.child import Child, MeasurementFailed
from bench.extproc.load import Order, Result

_LINE_LIMIT = 1 << 26
_GRACE_S = 60.0


class Generator(Child):
    """A child process that sends requests. An async context manager."""

    def __init__(self) -> None:
        super().__init__("bench.extproc.load", _LINE_LIMIT)

    async def run(self, order: Order) -> Result:
        """Carry out an order. Raises `MeasurementFailed` unless every answer was a 200."""
        self.tell(msgspec.json.encode(order))
        try:
            async with asyncio.timeout(order.seconds + _GRACE_S):
                line = await self.answer()
        except TimeoutError:
            raise MeasurementFailed(f"answers are still missing after {_GRACE_S:g} s") from None
        result = msgspec.json.decode(line, type=Result)
        if result.failed or not result.requests:
            raise MeasurementFailed(f"answers by status: {result.statuses} to {order}")
        return result
