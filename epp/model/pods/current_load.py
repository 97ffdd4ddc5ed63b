"""What an engine bears between two reports: the last one, and what was sent and seen done since.

A report shows an engine after its latest step, and lacks what came during that step and, of vLLM,
during the next: half a second under long prompts. The picker's books have its own requests at any
moment, and know by the engine's own rules which of them no step has reached. So the books are
believed of these, and a report of what it has beyond the books of the same moment: the requests
of others, and of this picker's those that wait report after report though a step could have
reached them, for the engine has limits that the books do not know (vLLM `max_num_seqs`).
"""

from math import inf

from epp.model.endpoint import CurrentLoad, Load
from epp.model.pods.engine_scheduler import EngineScheduler
from epp.model.pods.ledger import Ledger


class LoadBooks:
    """One endpoint's load by its last report, and by the books of that moment and of others.

    Until the first report it is what the books say.
    """

    __slots__ = (
        "_kv_usage",
        "_ledger",
        "_most_waiting",
        "_others",
        "_others_waiting",
        "_scheduler",
        "_unreached",
        "_unreached_before",
        "_window",
    )

    def __init__(self, ledger: Ledger, scheduler: EngineScheduler) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._others = 0.0
        self._others_waiting = 0.0
        self._most_waiting = inf  # less what was sent since the start
        self._kv_usage = 0.0  # beyond the books, or short of them
        # Own requests that reports show waiting beyond the books: the least of this window and of
        # the one before, each at least a step long.
        self._unreached = self._unreached_before = 0.0
        self._window = -inf

    def close(self, load: Load, step: float, now: float) -> None:
        """Compare a report with the books of the same moment.

        `step` is the duration of the engine's longest step, in seconds.
        """
        ledger, scheduler = self._ledger, self._scheduler
        own, requests = ledger.requests, load.waiting + load.running
        self._others = max(0.0, requests - own)
        beyond = max(0.0, load.waiting - len(scheduler.waiting))
        self._others_waiting = min(self._others, beyond)
        unreached = beyond - self._others_waiting
        if now - self._window >= step:
            self._window, self._unreached_before = now, self._unreached
            self._unreached = unreached
        else:
            self._unreached = min(self._unreached, unreached)
        # vLLM `schedule`: first come, first served, so that what runs does not wait again.
        self._most_waiting = load.waiting + max(0.0, own - requests) - ledger.sent
        if requests >= own:  # what came too late for the report holds blocks as well
            self._kv_usage = load.kv_usage - scheduler.usage

    def at(self, now: float) -> CurrentLoad:
        """Return the load at `now`, in seconds; the scheduler has caught up by then."""
        ledger, scheduler = self._ledger, self._scheduler
        requests = ledger.requests + self._others
        waiting = min(
            len(scheduler.waiting)
            + self._others_waiting
            + min(self._unreached, self._unreached_before),
            ledger.prefilling(now) + self._others,
            ledger.sent + self._most_waiting,
        )
        waiting = max(0.0, waiting)
        kv_usage = min(1.0, max(0.0, scheduler.usage + self._kv_usage))
        return CurrentLoad(waiting, max(0.0, requests - waiting), kv_usage)
