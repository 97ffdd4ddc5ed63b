"""How often and how long: the only difference between a quick run and a full one."""

import msgspec


class Effort(msgspec.Struct, frozen=True, kw_only=True):
    """Repetitions of each measurement and seconds of each repetition."""

    rounds: int
    slow_rounds: int
    closed_s: float
    stream_s: float
    open_s: float
    idle_s: float


QUICK = Effort(rounds=3, slow_rounds=2, closed_s=1.75, stream_s=2.25, open_s=3.0, idle_s=4.0)
FULL = Effort(rounds=5, slow_rounds=4, closed_s=4.0, stream_s=5.0, open_s=8.0, idle_s=10.0)
