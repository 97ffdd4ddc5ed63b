"""The behaviour of real servers under load and after a start, as pure functions of numbers.

A server that writes tokens and pages in one loop shows its page late while many requests run
(vLLM); one whose queue is full answers 503 (SGLang `--max-queued-requests`); one that compiles its
kernels lazily takes long for its first requests; one may have no page at all (llama.cpp without
`--metrics`, SGLang without `--enable-metrics`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Strain:
    """Each as long as it is set. Requests are unfinished from their arrival to their end.

    The page takes `late_seconds` while more than `late_above` are unfinished, and is missing with
    `no_page`. Requests that arrive while `shed_above` are unfinished get 503, with `retry-after` if
    `shed_retry_after` is set. The first `cold_requests` wait `cold_seconds` before they are
    computed.
    """

    late_above: int | None = None
    late_seconds: float = 5.0
    no_page: bool = False
    shed_above: int | None = None
    shed_retry_after: bool = False
    cold_requests: int = 0
    cold_seconds: float = 10.0

    def page_seconds(self, unfinished: int) -> float:
        """Return how long the page takes."""
        late = self.late_above is not None and unfinished > self.late_above
        return self.late_seconds if late else 0.0

    def sheds(self, unfinished: int) -> bool:
        """Whether one more request would be too many."""
        return self.shed_above is not None and unfinished >= self.shed_above

    def wait_seconds(self, before: int) -> float:
        """Return how long a request waits if this many others came before it."""
        return self.cold_seconds if before < self.cold_requests else 0.0
