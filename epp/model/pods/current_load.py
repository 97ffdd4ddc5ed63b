"""What an engine bears between two reports: the last one, and what was sent and seen done since.

A report is the truth of its moment, seconds ago; the picker's books are its own knowledge of its
own requests, at any moment. What the report says beyond the books of the same moment is others',
and stays until the next report.
"""

from epp.model.endpoint import CurrentLoad, Load
from epp.model.pods.engine_scheduler import EngineScheduler
from epp.model.pods.ledger import Ledger


class LoadBooks:
    """One endpoint's load by its last report, and by the books of that moment and of others.

    Until the first report all of the load is what the books say.
    """

    __slots__ = (
        "_kv_usage",
        "_ledger",
        "_others",
        "_scheduler",
        "_waiting",
    )

    def __init__(self, ledger: Ledger, scheduler: EngineScheduler) -> None:
        self._ledger = ledger
        self._scheduler = scheduler
        self._others = 0.0  # requests that the books do not have
        self._waiting = 0.0  # what the report said beyond the books, or short of them
        self._kv_usage = 0.0  # the same

    def close(self, load: Load) -> None:
        """Compare a report with the books of the same moment."""
        scheduler = self._scheduler
        self._others = max(0.0, load.waiting + load.running - self._ledger.requests)
        self._waiting = load.waiting - len(scheduler.waiting)
        self._kv_usage = load.kv_usage - scheduler.usage

    def at(self, now: float) -> CurrentLoad:
        """Return the load at `now`, in seconds; the scheduler has caught up by then."""
        ledger, scheduler = self._ledger, self._scheduler
        requests = ledger.requests + self._others
        most = ledger.prefilling(now) + self._others
        waiting = min(most, max(0.0, self._waiting + len(scheduler.waiting)))
        kv_usage = min(1.0, max(0.0, self._kv_usage + scheduler.usage))
        return CurrentLoad(waiting, max(0.0, requests - waiting), kv_usage)
