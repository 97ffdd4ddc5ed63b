"""How a launch stands: one object that the launcher writes and the probes read. Does no I/O."""

from enum import StrEnum

import msgspec


class Phase(StrEnum):
    """What a server goes through, in this order; only SERVING can be ready."""

    LOADING = "loading"
    SERVING = "serving"
    LEAVING = "leaving"
    """Told to end, and still serving for those who do not know yet."""
    DRAINING = "draining"
    """Running requests have their time; new ones are refused."""
    ENDED = "ended"


class AdapterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One adapter of the file."""

    path: str
    loaded: bool
    tries: int = 0
    """How often loading failed since it was last asked for."""
    error: str = ""
    """What the engine said to that."""


class Standing(msgspec.Struct):
    """Written on the event loop alone."""

    phase: Phase = Phase.LOADING
    adapters: dict[str, AdapterState] = {}
    adapters_error: str = ""
    """Why the file of adapters is not followed just now; empty when it is."""

    def status(self) -> bytes:
        """Return all of it as JSON."""
        body = {"phase": self.phase, "adapters": self.adapters}
        if self.adapters_error:
            body["adaptersError"] = self.adapters_error
        return msgspec.json.encode(body)
