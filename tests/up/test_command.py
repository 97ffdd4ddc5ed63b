"""What the command `up` does of itself."""

import asyncio
import signal

from epp.up.command import Signals


async def heard(number):
    signal.raise_signal(number)
    for _ in range(9):
        await asyncio.sleep(0)


async def test_a_terminal_that_is_closed_hangs_up_twice_which_hurries_nobody(hangups):
    signals = Signals()
    with signals.handled():
        await heard(signal.SIGHUP)
        assert signals.stop.is_set()
        await heard(signal.SIGHUP)
        assert not signals.hurry.is_set()
        await heard(signal.SIGTERM)
        assert signals.hurry.is_set()
    assert signals.status == 128 + signal.SIGTERM
    assert hangups == []
