"""The ends of requests: what they hold is released first, and then is learned from.

Nothing that a response says keeps its request in the books: what raises here raises after that.
What is in the books all the same is found by what engines report (`IdleReports`).
"""

from collections.abc import Mapping
from typing import Final

from epp.model.events import Aborted, Finished
from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.trust import Verdict
from epp.model.pods.in_flight import InFlightRequest
from epp.model.pods.pod import Pod
from epp.model.pods.pods import Pods
from epp.model.pods.sequence import SequenceState
from epp.model.prompts.reader import Prompts
from epp.model.request import RequestId, Usage


class RequestEnds:
    """Ends requests, which are no longer in flight, at their endpoints."""

    __slots__ = ("_output_lengths", "_pods", "_prompts")

    def __init__(self, prompts: Prompts, output_lengths: OutputLengths, pods: Pods) -> None:
        self._prompts: Final = prompts
        self._output_lengths: Final = output_lengths
        self._pods: Final = pods

    def finished(self, in_flight: InFlightRequest, event: Finished, now: float) -> None:
        """End a request whose response was seen to its end."""
        sequences = in_flight.sequences
        try:
            usage = event.usage or Usage(completion_tokens=event.generated)
            in_flight.hear(now)
            if len(sequences) == 1:
                offsets = self._prompts.learn_length(in_flight.quote, usage.prompt_tokens)
                sequences[0].correct_lengths(offsets)
            in_flight.record_generated(usage.prompt_tokens, usage.completion_tokens)
        finally:
            in_flight.release(now, revoked=False)
        in_flight.learn_output(self._output_lengths, usage.completion_tokens, now)
        if len(sequences) == 1:
            self._learn_usage(in_flight, sequences[0], usage)

    def _learn_usage(
        self, in_flight: InFlightRequest, sequence: SequenceState, usage: Usage
    ) -> None:
        """Learn from the reported cached tokens, and record that what was generated is cached."""
        pod, cached = in_flight.pod, usage.cached_tokens
        if in_flight.disaggregated:
            # Which of the two caches is meant depends on the sidecar's connector.
            self._prompts.remember_response(pod, sequence, usage)
            return
        if (
            cached is not None
            and pod.judge(in_flight.cached, cached, sequence) is Verdict.RESTARTED
        ):
            self._pods.refresh()
            return
        self._prompts.learn_prefix(
            in_flight.quote, in_flight.matched, cached or 0, pod.engine_block
        )
        self._prompts.remember_response(pod, sequence, usage)

    def aborted(self, in_flight: InFlightRequest, event: Aborted, now: float) -> None:
        """End a request whose response was not, or not wholly, seen."""
        sequences = in_flight.sequences
        try:
            in_flight.record_generated(0, event.generated)
        finally:
            in_flight.release(now, revoked=event.refused)
        if len(sequences) == 1 and not event.refused:
            guessed = in_flight.unobserved
            self._prompts.remember_broken(
                in_flight.pod, sequences[0], event.generated, guessed=guessed
            )


def lost_at(pod: Pod, in_flight: Mapping[RequestId, InFlightRequest]) -> list[RequestId]:
    """Return the requests in an endpoint's books that are over, or are not in flight there."""
    found = [(each, in_flight.get(each)) for each in sorted(pod.booked)]
    return [each for each, request in found if request is None or request.is_lost_at(pod)]


def keep_those_at(pod: Pod, in_flight: Mapping[RequestId, InFlightRequest], now: float) -> None:
    """Remove all but the requests in flight at an endpoint from its books."""
    here = {name: each for name, each in in_flight.items() if each.is_at(pod)}
    pod.keep({name: each.quote.target_model for name, each in here.items()}, now)
