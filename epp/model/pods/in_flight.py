"""One request at one endpoint: its quote, and what was predicted when it was sent."""

from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.learning.output_lengths import OutputLengths
from epp.model.learning.prefill import steps
from epp.model.learning.trust import DOUBT
from epp.model.pods.pace import PaceMark
from epp.model.pods.pod import Pod
from epp.model.pods.sequence import Admission, SequenceState
from epp.model.pods.unobserved import UnobservedRequest
from epp.model.quote import Estimate, Quote
from epp.model.request import InferenceRequest

_SURE: Final = 2.0
"""If the limit is below this many times the expected length, an answer ends at the limit."""
_MIN_LEARNED_TOKENS: Final = 64
"""Shorter prefills, in tokens, are not learned from: they mostly take as long as any step."""
_ANY_TIME: Final = 4096
"""Tokens that a response may have however soon it ends: servers may return known text."""
_TOKENS_A_SECOND: Final = 4096.0
"""The most tokens of an answer per second: more than the fastest engines generate. A class may be
slower than some of its endpoints, and it learns nothing from answers that come whole."""
_TOKENS_A_STEP: Final = 8.0
"""The most tokens of an answer per step of its class; the greater of the two bounds counts.
Speculated tokens are learned as shorter steps."""
_MOST_TOKENS: Final = 1 << 20
"""The most tokens of an answer, however long it takes."""


@mypyc_attr(free_list_len=1)
class InFlightRequest:
    """A request that was sent to a pod and has not ended. Times are of the picker's clock."""

    def __init__(self, quote: Quote, pod: Pod, sent_at: float) -> None:
        self.quote = quote
        self.pod = pod
        self.sent_at = sent_at
        self.active_at = sent_at
        """When it last showed life; infinite if it is not observed."""
        self.cached = 0
        """How many prompt tokens were predicted to be cached."""
        self.matched = 0
        """How many blocks of the index hold these tokens."""
        self.began: float | None = None
        """When its first token came; None while none was seen."""
        self.disaggregated = False
        """Whether another endpoint computes its prompts."""
        self.prefill: InFlightRequest | None = None
        """Its part at the endpoint that computes its prompts; None once that part is over."""
        self.encode: InFlightRequest | None = None
        """Its part at an endpoint that encodes its images; None once that part is over."""
        self.delayed = False
        """Whether it is not known when its endpoint can begin to compute its prompts."""
        self.weight = 1.0
        """How many responses it stands for as a sample."""
        self.coming = 0.0
        """How many more tokens it is expected to generate."""
        self._freed = -1  # tokens that its end frees; below 0 while not in `Pod.growth`
        self._spread = 0.0
        self._admission: Admission | None = None
        self._mark: PaceMark | None = None
        self._taught = 0.0  # by how much its first token changed the endpoint's slowness

    def disaggregate(self, pod: Pod) -> "InFlightRequest":
        """Return the part for another endpoint that computes the prompts.

        Call it before `send`, and after `encode_at`.
        """
        self.disaggregated = True
        self.prefill = prefill = InFlightRequest(self.quote, pod, self.sent_at)
        prefill.delayed = self.delayed
        return prefill

    def encode_at(self, pod: Pod) -> "InFlightRequest":
        """Return the part for another endpoint that encodes images; it has no prompts there."""
        quote, self.delayed = self.quote, True
        request = InferenceRequest(id=quote.request_id, target_model=quote.target_model)
        self.encode = encode = InFlightRequest(Quote(request, (), ()), pod, self.sent_at)
        return encode

    def aggregate(self, now: float) -> None:
        """Let the endpoint compute all stages itself after all; call it before `send`."""
        self.end_prefill(now, revoked=True)
        self.disaggregated = False

    def move(self, now: float) -> None:
        """Leave its endpoint for the one that serves it; call it before `send`.

        That one got it after the first one failed, and may have had its prompts computed again.
        """
        self.leave(now, revoked=True)
        self.active_at = max(self.active_at, now)
        self.delayed = True
        if self.prefill is not None:
            self.prefill.delayed = True
            self.prefill.pod.ledger.delay(self.quote.request_id)

    def send(self, pod: Pod, estimate: Estimate, now: float) -> None:
        """Send it to a pod whose cache is predicted to save `estimate`."""
        self.pod, self.cached, self.matched = pod, estimate.cached, estimate.matched
        if pod.feedback.trust < DOUBT:  # it is booked as it was priced
            counted = pod.feedback.discount(estimate.cached)
            estimate = self.quote.discounted(estimate, counted, pod.speed)
        self._admission = pod.admit(self.quote, estimate, now, decode_only=self.disaggregated)
        if self.delayed:
            pod.ledger.delay(self.quote.request_id)

    @property
    def sequences(self) -> list[SequenceState]:
        """Its prompts at the endpoint; none before it is sent and after it left."""
        admission = self._admission
        return [] if admission is None else admission.sequences

    @property
    def unprefilled(self) -> int:
        """The uncached tokens of the prompts; 0 once the first token of the response was seen.

        Also 0 if another endpoint computes them.
        """
        begun = self.disaggregated or self.began is not None
        return 0 if begun else self.quote.tokens - self.cached

    @property
    def parts(self) -> "list[InFlightRequest]":
        """The parts of the request, one for each of its endpoints."""
        found = [self] if self.prefill is None else [self, self.prefill]
        return found if self.encode is None else [*found, self.encode]

    @property
    def unobserved(self) -> bool:
        """Whether its response is not observed."""
        return self.active_at == inf

    @property
    def is_over(self) -> bool:
        """Whether all its endpoints that are not gone report that it ended long ago."""
        there = [each.pod for each in self.parts if each.pod.home]
        return all(self.active_at < pod.idle_reports.over_before for pod in there)

    def is_at(self, pod: Pod) -> bool:
        """Whether it is at an endpoint."""
        return any(each.pod is pod for each in self.parts)

    def record_activity(self, now: float) -> None:
        """Record a sign of life."""
        self.pod.idle_reports.record_activity(self.active_at)
        self.active_at = max(self.active_at, now)

    def record_first_token(self, now: float) -> None:
        """Record the end of the prefill; learn its duration if it met an idle endpoint."""
        self.record_activity(now)
        self.began = now
        if self.disaggregated:
            if self.prefill is not None and not self.pod.load.waiting:
                self.prefill.record_first_token(now)  # else it may not have ended there
            self.end_prefill(now)
            self.pod.count_time(now)
            self._mark = self.pod.pace.mark()
            return
        if self.encode is not None:
            self.end_prefill(now)
        pod, uncached = self.pod, self.quote.tokens - self.cached
        pod.count_time(now)
        span = pod.ledger.record_first_token(self.quote.request_id, now)
        if span is not None:
            expected, seconds = span
            self._taught = pod.pace.learn_prefill(expected, seconds, now)
        admission = self._admission
        if (
            admission is not None
            and admission.met_idle
            and uncached >= _MIN_LEARNED_TOKENS
            and not self.delayed
            and not self._slept(self.sent_at)
        ):
            pod.pace.learn_prompt(uncached, self.cached, now - self.sent_at - admission.beside)
        pod.pace.count_prefill(steps(uncached))
        self._mark = pod.pace.mark()

    def _slept(self, since: float) -> bool:
        """Whether its endpoint slept at that time or later; a sleeping engine keeps requests."""
        return self.pod.ledger.slept_at >= since

    def take_back(self) -> None:
        """Undo what its first token taught, as less of its prompt was cached than predicted."""
        self.pod.pace.prefill_slowness.take_back(self._taught)

    def count_unseen_beginning(self) -> None:
        """Count the beginning of a response that came whole, or that was not seen."""
        if self.began is None and not self.disaggregated:
            self.pod.ledger.record_begin()

    def end_prefill(self, now: float, *, revoked: bool = False, begun: bool = True) -> None:
        """Free what the request holds at other endpoints that encode or compute its prompts.

        `revoked`: those endpoints never computed them. `begun`: the response has begun.
        """
        if self.encode is not None:
            if begun and not revoked:
                self.encode.count_unseen_beginning()
            self.encode.leave(now, revoked=revoked)
            self.encode = None
        if self.prefill is not None:
            begun = begun and not revoked
            if begun:
                self.prefill.count_unseen_beginning()
            self.prefill.leave(now, revoked=revoked)
            self.prefill = None
            if begun:
                self.pod.ledger.record_first_token(self.quote.request_id, now)

    def can_have_generated(self, tokens: int, now: float) -> bool:
        """Return whether its answers can have this many tokens by now: servers may report nonsense.

        The bound follows the class's speed: an endpoint that reports too many tokens looks fast.
        """
        if tokens <= _ANY_TIME:
            return True
        answers = self.quote.answers
        if tokens > answers * _MOST_TOKENS:
            return False
        step = self.pod.pace.of_class.decode.seconds(1.0, 0.0)
        rate = max(_TOKENS_A_SECOND, _TOKENS_A_STEP / step)
        return tokens <= answers * rate * (now - self.sent_at)

    def record_generated(self, prompt_tokens: int, generated: int) -> None:
        """Record that `generated` tokens were generated; `prompt_tokens` is 0 if unknown."""
        # vLLM: the token that was sampled last is never computed; prompt + output - 1 are cached.
        sequences = self.sequences
        if len(sequences) == 1 and generated > 0:
            sequence = sequences[0]
            prompt = prompt_tokens or sequence.offsets.total
            self.pod.scheduler.record_computed(sequence, prompt + generated - 1)

    def seen_tokens(self, pieces: int, output_lengths: OutputLengths) -> int:
        """Return how many tokens these pieces of its stream have, within its client's limit.

        If the response is not observed, `pieces` is already a guess in tokens.
        """
        quote = self.quote
        if self.unobserved:
            return pieces
        tokens, limit = output_lengths.tokens_in(quote.response_kind, pieces), quote.max_tokens
        return tokens if limit is None else max(pieces, min(tokens, limit * quote.answers))

    def go_on(self, pieces: int, output_lengths: OutputLengths, now: float) -> None:
        """Record that its response has come in this many pieces so far."""
        generated = self.seen_tokens(pieces, output_lengths)
        self.record_activity(now)
        if generated and (self.prefill or self.encode) is not None:
            self.end_prefill(now)
        self.record_generated(0, generated)
        self.expect(output_lengths, generated)

    def expect(self, output_lengths: OutputLengths, generated: int) -> None:
        """Update `Pod.growth` by what is expected of the answers after `generated` tokens."""
        self._expect_nothing()
        quote, answers = self.quote, self.quote.answers
        if self._admission is None or not answers:
            return
        limit, each = quote.output_limit, generated // answers
        coming = output_lengths.remaining(quote.response_kind, limit, each)
        certain = limit is not None and limit - each < _SURE * coming
        self.coming = coming * answers
        self._freed = quote.tokens - self.cached + generated
        self._spread = 0.0 if certain else output_lengths.spread
        self.pod.growth.add(answers, self.coming, self._freed, self._spread)

    def expect_again(self) -> None:
        """Add the same expectation to the growth of an endpoint that was reset."""
        if self._freed >= 0:
            self.pod.growth.add(self.quote.answers, self.coming, self._freed, self._spread)

    def _expect_nothing(self) -> None:
        if self._freed >= 0:
            self.pod.growth.remove(self.quote.answers, self.coming, self._freed, self._spread)
            self.coming, self._freed = 0.0, -1

    def computed(self, now: float) -> int:
        """Return how many tokens of its prompts are computed by now, or were cached."""
        first = self.prefill or self
        done = first.pod.ledger.prefilled_share(self.quote.request_id, now)
        return self.quote.tokens - int((1.0 - done) * first.unprefilled)

    def cut_off(self, computed: int) -> None:
        """Record that its only prompt is cached as far as it was computed when it ended.

        If another endpoint computes the prompt, this one gets the blocks once all are computed.
        """
        if computed < self.quote.tokens:
            for each in self.parts:
                tokens = each.cached if each.disaggregated else computed
                for sequence in each.sequences:
                    each.pod.scheduler.cut_off(sequence, tokens)

    def release(self, now: float, *, revoked: bool, begun: bool = True) -> None:
        """Free all that the request holds; `revoked` and `begun` as in `end_prefill`."""
        try:
            self.end_prefill(now, revoked=revoked, begun=begun)
        finally:
            self.leave(now, revoked=revoked)

    def leave(self, now: float, *, revoked: bool) -> None:
        """Free what the request holds at its own endpoint; `revoked` if it was never computed."""
        admission, self._admission = self._admission, None
        self._expect_nothing()
        if admission is not None:
            self.pod.release(self.quote, admission, now, revoked=revoked)

    def leave_unobserved(self, output_lengths: OutputLengths, now: float) -> UnobservedRequest:
        """Stop observing the request; return its expected course."""
        quote, pod = self.quote, self.pod
        paced = pod.pace.of_class.seconds_per_token.settled
        before = pod if self.prefill is None else self.prefill.pod
        before.ledger.mark_unobserved(quote.request_id)
        self._mark = None
        self.active_at = inf
        return UnobservedRequest(
            id=quote.request_id,
            endpoint_id=pod.endpoint.id,
            since=now,
            began=now + before.ledger.queued_seconds(now) if self.began is None else self.began,
            seconds_per_token=pod.pace.seconds_per_token,
            length=output_lengths.length(quote.response_kind, quote.output_limit),
            most=inf if quote.max_tokens is None else quote.max_tokens,
            usual=paced and output_lengths.settled(quote.response_kind),
            answers=max(1, quote.answers),
        )

    def learn_output(self, output_lengths: OutputLengths, tokens: int, now: float) -> None:
        """Record in `output_lengths` a response of `tokens` tokens that was observed to its end.

        Several answers count as equally long.
        """
        quote = self.quote
        tokens = -(-tokens // max(1, quote.answers))
        self.pod.feedback.reports += 1
        output_lengths.record_length(quote.response_kind, tokens, quote.max_tokens, self.weight)
        # vLLM `record_prefix_cache_stats`: a prompt whose cached part is not read is not counted.
        if tokens > 0 and not quote.skip_reading_prefix_cache:
            self.pod.frozen_reports.record_served(self.sent_at)
        if self.began is None or self._slept(self.began):
            return
        pace = self.pod.pace
        seconds = (now - self.began) / pace.decode_slowness.relative
        pace.of_class.learn_tokens(tokens, seconds, self.weight)
        if tokens > 0 and not self._slept(self.sent_at):
            ttft, whole = self.began - self.sent_at, now - self.sent_at
            output_lengths.ttft_share.learn(ttft, whole, self.weight)
        if self._mark is not None:
            self.pod.count_time(now)
            pace.learn_decode(self._mark, tokens - 1, now)
