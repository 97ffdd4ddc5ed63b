"""What is played to a picker: reads in phases. The writer of a play and its player share these."""

import msgspec


class Read(msgspec.Struct, frozen=True, array_like=True):
    """Bytes that are read at once, `after` seconds after those before."""

    after: float
    data: bytes


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Reads, or seconds in which nothing is asked. What it costs is a figure, divided by `parts`.

    Where there are `endpoints`, these are first written into the picker's file and found.
    """

    name: str
    parts: int = 0
    reads: tuple[Read, ...] = ()
    seconds: float = 0.0
    endpoints: str = ""


class Play(msgspec.Struct, frozen=True, kw_only=True):
    """Phases in their order. `page` is what every endpoint says at its metrics port.

    `arguments` are those of `epp`, `endpoints` is what its file says at first. Phases without
    `parts` are played and not counted. `classes` is how many are made first, which nothing uses:
    Python's table of methods is laid out otherwise then.
    """

    arguments: tuple[str, ...]
    endpoints_file: str
    endpoints: str
    port: int
    page: bytes
    phases: tuple[Phase, ...]
    classes: int = 0


class Took(msgspec.Struct, frozen=True, kw_only=True):
    """What a player saw of a phase: bytes that came out, and seconds of CPU."""

    name: str
    sent: int
    seconds: float
