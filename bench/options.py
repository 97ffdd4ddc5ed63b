"""What the command line lets a benchmark be told."""

from pathlib import Path
from typing import Literal

import msgspec

from bench.accuracy.engines import EngineName
from bench.accuracy.identities import Identity
from epp.adapters.extproc.transports import Transport
from epp.protocol.extproc.observation import Observation


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """`quick`: fewer repetitions of the same work. `records` is a file for every single result.

    `only` and `transports` are for `adversary`: groups or names of attacks, none for all of them,
    and transports to attack. `only` of `published` are its rows. The rest is for `accuracy`.

    `engine` None is vLLM where it is installed, else the simulator; "none" starts no servers.
    `identities` is empty for all that the engine allows; `traces` is a trace file, or a folder
    of them. `observe`: measure nothing but what it costs to observe this many responses to their
    end. `against`, for `exchange`: a commit that is measured beside this tree.
    """

    quick: bool = False
    engine: EngineName | Literal["none"] | None = None
    identities: tuple[Identity, ...] = ()
    traces: Path | None = None
    records: Path | None = None
    observe: tuple[Observation, ...] = ()
    against: str | None = None
    only: tuple[str, ...] = ()
    transports: tuple[Transport, ...] = ("native",)
