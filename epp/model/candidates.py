"""The endpoints that may be picked for one request, by column.

A policy that compares numbers reads columns; a `Candidate` is made when one is looked at, so that
a pick among a thousand endpoints makes one. Those that look at all share what is made.
"""

from collections.abc import Iterator, Sequence
from operator import index as number_of
from typing import Final, SupportsIndex, overload

from epp.model.candidate import Candidate
from epp.model.endpoint import CurrentLoad
from epp.model.pods.current_load import LoadBooks
from epp.model.pods.ledger import LedgerSnapshot
from epp.model.pods.pods import EligiblePods
from epp.model.quote import Estimate, Quote


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
    least; 0 where no endpoint is known to have too little room for that. `taken` are the seconds
    for which it takes a slot of adapters from others, None where there are none to take. Units are
    those of `Candidate`.
    """

    __slots__ = (
        "_blocks",
        "_chains",
        "_decode",
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
        estimates: Sequence[Estimate],
        prefill_seconds: Sequence[float],
        trust: Sequence[float],
        snapshot: LedgerSnapshot,
        busy_share: float,
        ttft_share: float,
        length: float,
        now: float,
        context: int = 0,
        taken: Sequence[float] | None = None,
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
        self._decode: list[float] | None = None

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
        decode = self._decode_seconds()[position]
        taken = self._taken
        return Candidate(
            endpoint=self._endpoints[position],
            load=pod.load,
            prompt_tokens=self._tokens,
            cached_tokens=estimate.cached,
            matched_blocks=estimate.matched,
            total_blocks=self._blocks,
            queued_prefill_seconds=self._queued[position],
            prefill_seconds=self._prefill[position],
            class_prefill_seconds=estimate.seconds,
            decode_seconds=decode,
            generation_seconds=self._generation_seconds(position, decode),
            crowding_seconds=self._crowding_seconds(position, decode),
            slot_seconds=0.0 if taken is None else taken[position],
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

    def ttft_seconds(self, alpha: float, decoding: float, slot: float) -> list[float]:
        """Return the cost of a first token at each endpoint, in seconds.

        The factors weigh the prefill at the class's own speed, the seconds that the request's
        decode and others' take, and those for which it takes a slot.
        """
        queued, prefill, running, pods = self._queued, self._prefill, self._running, self._pods
        estimates, length, context = self._estimates, self._length, self._context
        costs: list[float] = []
        for position, beside in enumerate(self._decode_seconds()):
            others, own_prefill = running[position], prefill[position]
            decodes = pods[position].pace.joined_seconds(others, context) + 2.0 * beside
            costs.append(
                queued[position]
                + own_prefill
                + alpha * estimates[position].seconds
                + beside
                + decoding * (length * decodes + others * own_prefill)
            )
        taken = self._taken
        if taken is not None:
            return [cost + slot * each for cost, each in zip(costs, taken, strict=True)]
        return costs

    def _decode_seconds(self) -> list[float]:
        """Return what running decodes add to a step of each: vLLM computes all in the same one."""
        decode = self._decode
        if decode is None:
            decode = self._decode = [
                pod.decode_seconds(running)
                for pod, running in zip(self._pods, self._running, strict=True)
            ]
        return decode

    def _generation_seconds(self, position: int, decode: float) -> float:
        """Return what the request's tokens take, beside the decodes of the moment."""
        return self._length * (self._pods[position].pace.step_seconds(1.0, self._context) + decode)

    def _crowding_seconds(self, position: int, decode: float) -> float:
        """Return what the request's tokens take longer because of others, and theirs because of it.

        Others are taken to run for as long as it does, and wait while its prompt is computed.
        """
        own = self._pods[position].pace.decode_seconds(1.0, self._context)
        others = self._length * own + self._prefill[position]
        return self._length * decode + self._running[position] * others

    @property
    def _context(self) -> float:
        """How many tokens the request looks back at while it decodes, on average."""
        return self._tokens + self._length / 2
