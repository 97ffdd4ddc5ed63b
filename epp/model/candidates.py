"""The endpoints that may be picked for one request, by column.

A policy that compares numbers reads columns; a `Candidate` is made when one is looked at, so that
a pick among a thousand endpoints makes one. Those that look at all share what is made.
"""

from collections.abc import Iterator, Sequence
from operator import index as number_of
from typing import Final, SupportsIndex, overload

from epp.model.candidate import Candidate
from epp.model.endpoint import CurrentLoad, Endpoint
from epp.model.pods.current_load import LoadBooks
from epp.model.pods.ledger import LedgerSnapshot
from epp.model.pods.pods import EligiblePods
from epp.model.quote import Estimate, Quote


class CostTerms:
    """What a request costs at each endpoint, in columns of seconds named as in `Candidate`."""

    __slots__ = (
        "class_prefill",
        "crowding",
        "decode",
        "generation",
        "prefill",
        "queued_prefill",
        "slot",
    )

    def __init__(  # noqa: PLR0913, PLR0917 (one column each)
        self,
        queued_prefill: list[float],
        prefill: list[float],
        class_prefill: list[float],
        decode: list[float],
        generation: list[float],
        crowding: list[float],
        slot: list[float],
    ) -> None:
        self.queued_prefill: Final = queued_prefill
        self.prefill: Final = prefill
        self.class_prefill: Final = class_prefill
        self.decode: Final = decode
        self.generation: Final = generation
        self.crowding: Final = crowding
        self.slot: Final = slot


class _LoadOnce:
    """The load of one endpoint, computed when it is first asked for (`LoadSource`)."""

    __slots__ = ("_books", "_load")

    def __init__(self, books: LoadBooks) -> None:
        self._books: Final = books
        self._load: CurrentLoad | None = None

    def at(self, now: float, /) -> CurrentLoad:
        """Return the load at the first `now`."""
        if self._load is None:
            self._load = self._books.at(now)
        return self._load


class Candidates(Sequence[Candidate]):
    """The endpoints' predicted states and costs at one moment, in aligned columns.

    Good while one decision is made: a load that is first looked at later is a later one.
    `busy_share` and `ttft_share`, in 0..1, are the fleet's; `length` is how many tokens the request
    is expected to generate. `context` is how many tokens it has with what it may generate, at
    least; 0 if no endpoint is known to have too little room for that. `taken` are the seconds
    for which it takes a slot of adapters from others, None if there are none to take. Units are
    those of `Candidate`.
    """

    __slots__ = (
        "_blocks",
        "_chains",
        "_endpoints",
        "_estimates",
        "_length",
        "_loads",
        "_made",
        "_model",
        "_now",
        "_pods",
        "_prefill",
        "_queued",
        "_requests",
        "_running",
        "_taken",
        "_terms",
        "_tokens",
        "_trust",
        "busy_share",
        "context",
        "ttft_share",
    )

    def __init__(  # noqa: PLR0913, PLR0917 (one column each)
        self,
        quote: Quote,
        eligible: EligiblePods,
        estimates: list[Estimate],
        prefill_seconds: list[float],
        trust: list[float],
        snapshot: LedgerSnapshot,
        busy_share: float,
        ttft_share: float,
        length: float,
        now: float,
        context: int = 0,
        taken: list[float] | None = None,
    ) -> None:
        self._tokens: Final = quote.tokens
        self._blocks: Final = quote.blocks
        self._chains: Final = quote.chains
        self._model: Final = quote.target_model
        self.context: Final = context
        self._taken: Final = taken
        self._endpoints: Final = eligible.endpoints
        self._pods: Final = eligible.pods
        self._length: Final = length
        self._now: Final = now
        self._estimates: Final = estimates
        self._prefill: Final = prefill_seconds
        self._trust: Final = trust
        self._queued: Final = snapshot.queued_prefill_seconds
        self._requests: Final = snapshot.requests
        self._running: Final = snapshot.running
        self.busy_share: Final = busy_share
        self.ttft_share: Final = ttft_share
        self._made: list[Candidate] | None = None
        self._loads: list[CurrentLoad] | None = None
        self._terms: CostTerms | None = None

    def __len__(self) -> int:
        return len(self._estimates)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> list[Candidate]: ...

    def __getitem__(self, index: SupportsIndex | slice) -> Candidate | list[Candidate]:
        if isinstance(index, slice):
            return [self._make(position) for position in range(*index.indices(len(self)))]
        return self._make(number_of(index))

    def __iter__(self) -> Iterator[Candidate]:
        made = self._made
        if made is None:  # several plug-ins may look at all
            made = self._made = [self._make(position) for position in range(len(self))]
        return iter(made)

    def _make(self, position: int) -> Candidate:
        estimate, pod, loads = self._estimates[position], self._pods[position], self._loads
        terms = self.cost_terms()
        return Candidate(
            endpoint=self._endpoints[position],
            load=pod.load,
            prompt_tokens=self._tokens,
            cached_tokens=estimate.cached,
            matched_blocks=estimate.matched,
            total_blocks=self._blocks,
            queued_prefill_seconds=terms.queued_prefill[position],
            prefill_seconds=terms.prefill[position],
            class_prefill_seconds=terms.class_prefill[position],
            decode_seconds=terms.decode[position],
            generation_seconds=terms.generation[position],
            crowding_seconds=terms.crowding[position],
            slot_seconds=terms.slot[position],
            requests=self._requests[position],
            in_flight_tokens=pod.ledger.queued_tokens,
            busy_share=self.busy_share,
            ttft_share=self.ttft_share,
            trust=self._trust[position],
            fits=pod.holds(self._model, self.context) if self.context else None,
            current=_LoadOnce(pod.books) if loads is None else loads[position],
            now=self._now,
            chains=self._chains,
        )

    def loads(self) -> Sequence[CurrentLoad]:
        """Return the load of each endpoint, of the moment at which all are first looked at."""
        loads = self._loads
        if loads is None:
            now = self._now
            loads = self._loads = [pod.books.at(now) for pod in self._pods]
        return loads

    def cached_tokens(self) -> list[int]:
        """Return how many of the prompt's tokens each endpoint's cache is predicted to serve."""
        return [estimate.cached for estimate in self._estimates]

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the endpoints."""
        return self._endpoints

    def trust(self) -> Sequence[float]:
        """Return how well recent predictions for each endpoint's cache held, from 0 to 1."""
        return self._trust

    def requests(self) -> Sequence[int]:
        """Return how many requests were sent to each endpoint and not seen to end."""
        return self._requests

    def cost_terms(self) -> CostTerms:
        """Return what the request costs at each endpoint."""
        if self._terms is None:
            self._terms = self._find_terms()
        return self._terms

    def _find_terms(self) -> CostTerms:
        """Find them all at once.

        Running decodes and the request's own are computed in the same steps (vLLM), so that its
        tokens take longer because of them. They run for as long as it does, look back at as much,
        and wait while it is prefilled.
        """
        length, context = self._length, self._tokens + self._length / 2
        decode: list[float] = []
        generation: list[float] = []
        crowding: list[float] = []
        for position, pod in enumerate(self._pods):
            running, pace = self._running[position], pod.pace
            beside = pod.decode_seconds(running)
            theirs = length * pace.decode_seconds(1.0, context) + self._prefill[position]
            decode.append(beside)
            generation.append(length * (pace.step_seconds(1.0, context) + beside))
            crowding.append(length * beside + running * theirs)
        own = [estimate.seconds for estimate in self._estimates]
        slot = self._taken or [0.0] * len(decode)
        return CostTerms(self._queued, self._prefill, own, decode, generation, crowding, slot)
