"""The endpoints that may be picked for one request, as policies see them.

Each endpoint is one object, with its numbers in it: compiled code makes and reads such objects
faster than lists of numbers.
"""

from epp.model.candidate import Candidate
from epp.model.learning.trust import DOUBT
from epp.model.pods.ledger import BusyShare
from epp.model.pods.pods import EligiblePods
from epp.model.quote import Quote


def price(  # noqa: PLR0913, PLR0917 (what a price depends on)
    quote: Quote,
    eligible: EligiblePods,
    busy: BusyShare,
    ttft_share: float,
    length: float,
    context: int,
    now: float,
    *,
    takes_slot: bool,
) -> list[Candidate]:
    """Return the costs of a request, whose quote was looked up, at each endpoint as of `now`.

    It is expected to generate `length` tokens. `context` is the least number of tokens that it has
    with its output; 0 if no endpoint is known to have too short a context. Scrapes give only the
    number of other clients' waiting requests: each counts as long as this one's prefill.
    `takes_slot`: it is for an adapter. `busy` is updated by how many have prefill to do.

    An engine computes running decodes and the request's own in the same steps (vLLM), so each slows
    the other. Running decodes are assumed to last as long as the request, and to have as much
    context. They wait while the request is prefilled.
    """
    tokens, model = quote.tokens, quote.target_model
    mean_context = tokens + length / 2
    estimates = quote.estimates(eligible.places)
    found: list[Candidate] = []
    prefilling = 0
    for position, pod in enumerate(eligible.pods):
        estimate, pace, ledger = estimates[position], pod.pace, pod.ledger
        trust, slowness = pod.feedback.trust, pace.prefill_slowness.value
        if trust < DOUBT:
            cached = pod.feedback.discount(estimate.cached)
            if cached < estimate.cached:
                estimate = quote.discounted(estimate, cached, pod.speed)
        prefill = estimate.seconds * slowness
        queued = ledger.queued_seconds(now)
        prefilling += queued > 0
        if ledger.external_waiting:
            each = prefill if tokens else pod.speed.prefill.step * slowness
            queued += ledger.external_waiting * each
        slot = 0.0
        if takes_slot:
            wait, slot = pod.slot_seconds(model, length)
            queued = max(queued, wait)
        running = pod.running
        decode = pod.decode_seconds(running)
        cost_to_each = length * pace.decode_seconds(1.0, mean_context) + prefill
        found.append(
            Candidate(
                endpoint=pod.endpoint,
                load=pod.load,
                prompt_tokens=tokens,
                cached_tokens=estimate.cached,
                matched_blocks=estimate.matched,
                total_blocks=quote.blocks,
                queued_prefill_seconds=queued,
                prefill_seconds=prefill,
                class_prefill_seconds=estimate.seconds,
                decode_seconds=decode,
                generation_seconds=length * (pace.step_seconds(1.0, mean_context) + decode),
                crowding_seconds=length * decode + running * cost_to_each,
                slot_seconds=slot,
                requests=ledger.requests,
                in_flight_tokens=ledger.queued_tokens,
                ttft_share=ttft_share,
                trust=trust,
                fits=pod.fits(model, context) if context else None,
                current=pod.books,
                now=now,
                chains=quote.chains,
            )
        )
    busy.update(prefilling, len(found), now)
    for candidate in found:
        candidate.busy_share = busy.value
    return found
