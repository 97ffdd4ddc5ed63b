"""How the time of some work grows with the length of what it is given.

What is linear takes 8 times as long for 8 times the length, what is quadratic 64 times. It is the
process's own time, and the shortest of several runs, so that other processes do not count.
"""

import gc
import time
from collections.abc import Callable

LONG, TIMES = 1 << 15, 8
MOST = 22
NOTHING = 0.001
"""Seconds that are not looked at: 30 ns a byte."""
AGAIN, ENOUGH = 6, 0.3
"""How often what took too long is run again, and the seconds after which it is not."""


def seconds(work: Callable[[bytes], object], data: bytes) -> float:
    """Return the CPU time of one run."""
    began = time.process_time()
    work(data)
    return time.process_time() - began


def too_steep(
    work: Callable[[bytes], object], made: Callable[[int], bytes], longest: int = LONG
) -> str:
    """Return how the time grew up to a length of `longest`, if that was too much."""
    gc.disable()
    try:
        data = made(longest)
        long = taken = seconds(work, data)
        if long <= NOTHING:
            return ""
        short = seconds(work, made(longest // TIMES))
        allowed = max(NOTHING, MOST * short)
        times = 1
        while long > allowed and times < AGAIN and taken < ENOUGH:
            again = seconds(work, data)
            long, taken, times = min(long, again), taken + again, times + 1
    finally:
        gc.enable()
    return f"{1000 * short:.1f} ms, then {1000 * long:.1f} ms" if long > allowed else ""


def repeated(head: bytes, unit: bytes, tail: bytes) -> Callable[[int], bytes]:
    """Return what makes a text of a length: a head, one unit again and again, a tail."""
    return lambda size: head + unit * (size // len(unit)) + tail
