"""A request's way through a scheduler."""


def routed(scheduler, request, now, timer=None):
    """Decide on a request and admit it, as flow control does with one that need not wait."""
    quote = scheduler.quote(request, now)
    decision = scheduler.propose(request, quote, now, timer)
    scheduler.commit(request, quote, decision, now)
    return decision
