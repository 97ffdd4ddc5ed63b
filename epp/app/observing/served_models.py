"""The models of all endpoints in one list: what `GET /v1/models` is answered with."""

import msgspec

from epp.errors import NoEndpoints
from epp.model.events import EndpointRemoved, EndpointUpserted, Event, ModelsListed
from epp.model.fleet import Fleet

_CHANGES = (EndpointUpserted, EndpointRemoved, ModelsListed)


class ServedModels:
    """Lists the models of a fleet's endpoints. `created` is a Unix time, in seconds."""

    def __init__(self, fleet: Fleet, created: int) -> None:
        self._fleet = fleet
        self._created = created
        self._page = b""
        fleet.subscribe(_CHANGES, self._on_change, "observer/models")

    def page(self) -> bytes:
        """Return the list as JSON, by name; raise `NoEndpoints` if no endpoint has listed any."""
        if not self._page:
            models = self._models()
            if not models:
                raise NoEndpoints("no endpoint has listed its models yet", reason="models-unknown")
            self._page = msgspec.json.encode({"object": "list", "data": models})
        return self._page

    def _models(self) -> list[dict[str, object]]:
        """Return OpenAI's object of each model, with vLLM's `max_model_len` if an endpoint has it.

        It is the shortest of all endpoints, because a request may go to any of them.
        """
        contexts: dict[str, int | None] = {}
        for pod in self._fleet.pods.values():
            for name in pod.models or ():
                known, tokens = contexts.get(name), pod.max_model_lens.get(name)
                contexts[name] = tokens if known is None else min(known, tokens or known)
        return [
            {"id": name, "object": "model", "created": self._created, "owned_by": "warmpick"}
            | ({} if contexts[name] is None else {"max_model_len": contexts[name]})
            for name in sorted(contexts)
        ]

    def _on_change(self, _event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        self._page = b""
