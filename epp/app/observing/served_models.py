"""The models of all endpoints in one list, with which `GET /v1/models` is answered."""

from collections.abc import Callable
from itertools import groupby, islice
from math import inf
from typing import Final

import msgspec

from epp.errors import NoEndpoints
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, ModelsListed
from epp.model.fleet import Fleet

_CHANGES: Final = (EndpointUpserted, EndpointRemoved, ModelsListed)
_FRESH_SECONDS: Final = 1.0
_MAX_NAMES: Final = 65_536
"""Names that are looked at, of all endpoints; those of one that lists what the last did are not."""
_MAX_CHARACTERS: Final = 1 << 20
_CARD: Final = 64
"""Characters that a model counts for beside its name."""


class ServedModels:
    """Lists the models of a fleet's endpoints. `created` is a Unix time, in seconds.

    The list is made at most once a second. Its length is bounded, because endpoints may list any
    names, and change them at each poll.
    """

    def __init__(self, fleet: Fleet, created: int, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._created = created
        self._clock = clock
        self._page = b""
        self._made_at = -inf
        self._changed = True
        fleet.subscribe(_CHANGES, self._on_change, "observer/models")

    def page(self) -> bytes:
        """Return the list as JSON, by name; raise `NoEndpoints` if no endpoint has listed any."""
        now = self._clock()
        if self._changed and now >= self._made_at + _FRESH_SECONDS:
            models = self._models()
            if not models:
                raise NoEndpoints("no endpoint has listed its models yet", reason="models-unknown")
            self._page = msgspec.json.encode({"object": "list", "data": models})
            self._made_at, self._changed = now, False
        return self._page

    def _models(self) -> list[dict[str, object]]:
        """Return OpenAI's object of each model, with vLLM's `max_model_len` if an endpoint has it.

        It is the shortest of all endpoints, because a request may go to any of them.
        """
        contexts: dict[str, int | None] = {}
        room = _MAX_CHARACTERS
        pods = self._fleet.pods.values()
        lists = groupby((pod.models or frozenset(), pod.max_model_lens) for pod in pods)
        listed = ((name, lens.get(name)) for (names, lens), _ in lists for name in names)
        for name, tokens in islice(listed, _MAX_NAMES):
            if name not in contexts and (room := room - len(name) - _CARD) < 0:
                break
            known = contexts.get(name)
            contexts[name] = tokens if known is None else min(known, tokens or known)
        return [
            {"id": name, "object": "model", "created": self._created, "owned_by": "warmpick"}
            | ({} if contexts[name] is None else {"max_model_len": contexts[name]})
            for name in sorted(contexts)
        ]

    def _on_change(self, _event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        self._changed = True
