"""The ends of requests: they are released first, and learned from then.

Nothing in a response can keep its request in the books, since errors are raised only after the
release. Requests that still remain in the books are found by engines' reports (`IdleReports`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.caches.contract import Lease
from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.trust import Verdict
from epp.model.pods.growth import Growth
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.pod import Pod
from epp.model.pods.pods import Pods
from epp.model.pods.sequence import SequenceState
from epp.model.prompts.generated import GeneratedBlocks
from epp.model.prompts.hashing import BlockHash
from epp.model.prompts.reader import Prompts
from epp.model.quote import Quote
from epp.model.request import RequestId, Usage
from epp.model.request_events import Aborted, Failure, Finished
from epp.values import replaced

_FAULTS: Final = (Failure.GATEWAY, Failure.EMPTY)


class RequestEnds:
    """Ends requests, which are no longer in flight, at their endpoints.

    A shed request shows that an endpoint refuses requests. So does a failure that is not the
    request's own fault, if endpoints may be ejected for failures (`ejects`). Either counts against
    both endpoints that prefill and decode a request, since either may have refused.
    """

    def __init__(
        self, prompts: Prompts, output_lengths: OutputLengths, pods: Pods, *, ejects: bool
    ) -> None:
        self._prompts: Final = prompts
        self._output_lengths: Final = output_lengths
        self._pods: Final = pods
        self._ejects: Final = ejects

    def finished(self, in_flight: InFlightRequest, event: Finished, now: float) -> None:
        """End a request whose response was seen to its end."""
        sequences = in_flight.sequences
        try:
            usage, counted = event.usage, True
            if usage is None or not in_flight.can_have_generated(usage.completion_tokens, now):
                seen, counted = in_flight.seen_tokens(event.generated, self._output_lengths), False
                if usage is None:
                    usage = Usage(completion_tokens=seen)
                else:
                    usage = replaced(usage, completion_tokens=seen)
            in_flight.record_activity(now)
            in_flight.count_unseen_beginning()
            if len(sequences) == 1:
                usage = self._believed(in_flight.quote, usage)
                self._learn_length(in_flight.quote, sequences[0], usage.prompt_tokens)
            in_flight.record_generated(usage.prompt_tokens, usage.completion_tokens)
        finally:
            in_flight.release(now, revoked=False)
        tokens, kind = usage.completion_tokens, in_flight.quote.response_kind
        in_flight.learn_output(self._output_lengths, tokens, now)
        if counted:
            self._output_lengths.record_pieces(kind, tokens, event.generated)
        if len(sequences) == 1:
            self._learn_usage(in_flight, sequences[0], usage)

    def _believed(self, quote: Quote, usage: Usage) -> Usage:
        """Return the reported usage, without a number of prompt tokens that cannot be true."""
        tokens, chain = usage.prompt_tokens, quote.chains[0]
        if not tokens or self._prompts.estimator.believes(chain, tokens, quote.kind):
            return usage
        return replaced(usage, prompt_tokens=0)

    def _learn_length(self, quote: Quote, sequence: SequenceState, prompt_tokens: int) -> None:
        chain, offsets = quote.chains[0], quote.token_offsets[0]
        model, kind = quote.target_model, quote.kind
        sequence.correct_lengths(
            self._prompts.learn_length(chain, offsets, prompt_tokens, model, kind)
        )

    def _learn_usage(
        self, in_flight: InFlightRequest, sequence: SequenceState, usage: Usage
    ) -> None:
        """Learn from the reported cached tokens, and record that the output is cached."""
        pod, quote, cached = in_flight.pod, in_flight.quote, usage.cached_tokens
        # With two endpoints, it depends on the sidecar's connector which cache is meant.
        if not in_flight.disaggregated:
            if cached is not None:
                verdict = pod.judge(in_flight.cached, cached, sequence)
                if verdict is not Verdict.HELD:
                    in_flight.take_back()
                if verdict is Verdict.RESTARTED:
                    self._pods.refresh()
                    return
            chain, offsets, block = quote.chains[0], quote.token_offsets[0], pod.engine_block
            self._prompts.learn_prefix(chain, offsets, in_flight.matched, cached or 0, block)
        if usage.prompt_tokens:
            self._remember(in_flight, sequence, usage.prompt_tokens, usage.completion_tokens)

    def _remember(
        self,
        in_flight: InFlightRequest,
        sequence: SequenceState,
        prompt_tokens: int,
        generated: int,
        *,
        broken: bool = False,
    ) -> None:
        """Remember the output that a single answer left in a cache, after its prompt's blocks."""
        pod, chain, lease = in_flight.pod, sequence.chain, sequence.lease
        if in_flight.quote.answers != 1 or generated <= 1 or lease is None or not chain.hashes:
            return
        if sequence.cache is pod.scheduler.cache:
            self._prompts.generated.remember(
                GeneratedBlocks(
                    sequence.request_id,
                    chain,
                    sequence.offsets.covered(len(chain.hashes)),
                    _OutputAtPod(pod, lease),
                    prompt_tokens,
                    generated,
                    broken=broken,
                    guessed=broken and in_flight.unobserved,
                )
            )

    def aborted(self, in_flight: InFlightRequest, event: Aborted, now: float) -> None:
        """End a request whose response was not seen, or not to its end."""
        sequences, begun = in_flight.sequences, in_flight.unobserved
        first, last = in_flight.prefill, in_flight.pod
        try:
            seen = in_flight.seen_tokens(event.generated, self._output_lengths)
            if in_flight.unobserved:
                in_flight.count_unseen_beginning()
            in_flight.record_generated(0, seen)
            begun = begun or seen > 0
            if len(sequences) == 1 and event.computed is not None:
                in_flight.cut_off(event.computed)
        finally:
            in_flight.release(now, revoked=event.refused, begun=begun)
        failure = event.failure
        if event.served and (failure is Failure.BUSY or (failure in _FAULTS and self._ejects)):
            last.ledger.record_refusal(now)
            if first is not None:
                first.pod.ledger.record_refusal(now)
        if len(sequences) == 1 and not event.refused:
            self._remember(in_flight, sequences[0], sequences[0].offsets.total, seen, broken=True)


def measured(event: Aborted, in_flight: Mapping[RequestId, InFlightRequest], now: float) -> Aborted:
    """Add how much of the prompt is computed by now, if the request ends before any output."""
    request = in_flight.get(event.request_id)
    if request is None or event.refused or event.generated or event.computed is not None:
        return event
    return replaced(event, computed=request.computed(now))


@mypyc_attr(free_list_len=1, acyclic=True)
class _OutputAtPod:
    """The output of a lease, while its pod and its cache exist (`CachedOutput`)."""

    def __init__(self, pod: Pod, lease: Lease) -> None:
        self._home: Final = pod.home
        self._generation: Final = pod.scheduler.generation
        self._lease: Final = lease

    @property
    def gone(self) -> bool:
        return not self._home or self._home[0].scheduler.generation != self._generation

    @property
    def engine_block(self) -> int:
        return self._home[0].engine_block

    def assign_hashes(self, hashes: Sequence[BlockHash], sizes: Sequence[int]) -> None:
        self._home[0].scheduler.assign_hashes(self._lease, hashes, sizes)


def lost_at(pod: Pod, in_flight: Mapping[RequestId, InFlightRequest]) -> list[RequestId]:
    """Return the requests in an endpoint's books that are over, or are not in flight there."""
    found = [(each, in_flight.get(each)) for each in sorted(pod.booked)]
    return [
        each
        for each, request in found
        if request is None or request.is_over or not request.is_at(pod)
    ]


def keep_those_at(pod: Pod, in_flight: Mapping[RequestId, InFlightRequest], now: float) -> None:
    """Remove all but the requests in flight at an endpoint from its books."""
    here = {name: each for name, each in in_flight.items() if each.is_at(pod)}
    pod.keep({name: each.quote for name, each in here.items()}, now)
    parts = [part for each in here.values() for part in each.parts if part.pod is pod]
    pod.growth = Growth()
    for part in parts:
        part.expect_again()
