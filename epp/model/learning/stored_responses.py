"""The engine that has each stored response, since requests may continue it by its id.

vLLM, SGLang and others keep the responses of OpenAI's Responses API in the memory of the server
that made them; any other server answers with 404.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from epp.model.endpoint import EngineId
from epp.model.learning.bounded import make_room

StoredState = tuple[int, EngineId]
"""The hash of a response's id, and the engine that has it."""

MOST: Final = 1 << 16
"""The most responses that are kept."""
KEPT_SECONDS: Final = 86_400.0
"""For how long a response is kept."""


class StoredResponses:
    """The engines of the latest responses. An id is kept as 64 bits, whatever its length.

    `key_of` returns these bits, the same ones at each replica (`BlockHasher.response_key`).
    """

    def __init__(self, key_of: Callable[[str], int]) -> None:
        self._key_of: Final = key_of
        self._stored: Final[OrderedDict[int, tuple[EngineId, float]]] = OrderedDict()

    def store(self, response_id: str, engine: EngineId, now: float) -> None:
        """Record where a response is; the last engine that answers with its id counts."""
        stored, key = self._stored, self._key_of(response_id)
        stored.pop(key, None)
        while stored and now - next(iter(stored.values()))[1] >= KEPT_SECONDS:
            stored.popitem(last=False)
        make_room(stored, MOST)
        stored[key] = engine, now

    def engine_of(self, response_id: str, now: float) -> EngineId | None:
        """Return the engine that has a response; None if unknown."""
        found = self._stored.get(self._key_of(response_id)) if response_id else None
        if found is None or now - found[1] >= KEPT_SECONDS:
            return None
        return found[0]

    def state(self) -> Sequence[StoredState]:
        """Return all that is known, the oldest first."""
        return [(key, engine) for key, (engine, _) in self._stored.items()]

    def take_over(self, state: Sequence[StoredState], now: float) -> None:
        """Add what another replica knows, as new, but older than what was recorded here."""
        here = self._stored.copy()
        for key, engine in state:
            self._stored[key] = engine, now
        for key, known in here.items():
            del self._stored[key]  # it goes to the end
            self._stored[key] = known
        while len(self._stored) > MOST:
            self._stored.popitem(last=False)
