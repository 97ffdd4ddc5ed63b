"""The state of a launch: one object that the launcher writes and the probes read. Does no I/O."""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """The phases of a server, in this order; only SERVING can be ready."""

    LOADING = "loading"
    SERVING = "serving"
    LEAVING = "leaving"
    """It was told to end, and still serves clients that do not know that yet."""
    DRAINING = "draining"
    """Running requests may finish; new ones are refused."""
    ENDED = "ended"


class AdapterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One adapter of the file."""

    path: str
    loaded: bool
    tries: int = 0
    """How often loading failed since it was last asked for."""
    error: str = ""
    """The engine's answer to that."""


class Standing(msgspec.Struct):
    """The state, written only on the event loop."""

    phase: Phase = Phase.LOADING
    adapters: dict[str, AdapterState] = {}
    adapters_error: str = ""
    """Why the file of adapters is not followed at present; empty if it is."""

    def status(self) -> bytes:
        """Return all of it as JSON."""
        body = {"phase": self.phase, "adapters": self.adapters}
        if self.adapters_error:
            body["adaptersError"] = self.adapters_error
        return msgspec.json.encode(body)
