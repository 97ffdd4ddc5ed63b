"""One watch: what is replayed, what follows, bookmarks, and its end. Writes no HTTP itself."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from tests.kubeapi import status
from tests.kubeapi.listing import selected, shown, version_of
from tests.kubeapi.request import is_true
from tests.kubeapi.status import ApiError
from tests.kubeapi.store import Change, Compacted, Store, at_revision
from tests.kubeapi.writes import Target

Json = dict[str, Any]
LONGEST: Final = 1800.0  # seconds; --min-request-timeout
BOOKMARK_EVERY: Final = 60.0
BOOKMARK_BEFORE_END: Final = 2.0
# What Go's zero values leave in the object of a bookmark.
EMPTY: Final[dict[str, Json]] = {
    "Pod": {"spec": {"containers": None}, "status": {}},
    "Lease": {"spec": {}},
}


class Watch:
    """The events of one watch as lines of JSON. Built before the first byte is answered.

    Errors when built: ApiError 400, or 500 for what is not a version. A resourceVersion from before
    the last compaction is told in the stream, as the watch cache does.
    """

    def __init__(self, store: Store, target: Target, query: Json) -> None:
        self.store = store
        self.target = target
        self.query = query
        self._matches = selected(target, query)
        self._bookmarks = is_true(query, "allowWatchBookmarks")
        self._lines: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._over = False
        try:
            version = version_of(target, query)
        except ApiError as error:  # which the watch cache does not know for the client's fault
            raise ApiError(500, "", error.message) from None
        self._begin(version)

    def _begin(self, version: int | None) -> None:
        if version:
            self._replay(version)
        else:
            for _, value in sorted(self.store.everything(self.target.kind.resource).items()):
                if self._matches(value):
                    self._lines.append(self._line("ADDED", value))
        self._listens = not self._over
        if self._listens:
            self.store.listen(self.target.kind.resource, self._changed)

    def _replay(self, version: int) -> None:
        try:
            for change in self.store.since(self.target.kind.resource, version):
                self._changed(change)
        except Compacted as gone:
            error = status.expired(f"too old resource version: {version} ({gone.floor})")
            self._lines.append(_frame("ERROR", error.body()))
            self.finish()

    def _changed(self, change: Change) -> None:
        was = change.before is not None and self._matches(change.before)
        is_now = change.after is not None and self._matches(change.after)
        if change.after is not None and is_now:
            self._send(change, "MODIFIED" if was else "ADDED", change.after)
        elif change.before is not None and was:
            self._send(change, "DELETED", at_revision(change.before, change.revision))

    def _send(self, change: Change, kind: str, value: Json) -> None:
        key = (kind, self.target.version)
        if key not in change.encoded:
            change.encoded[key] = self._line(kind, value)
        self._lines.append(change.encoded[key])
        self._wake.set()

    def _line(self, kind: str, value: Json) -> bytes:
        return _frame(kind, shown(self.target, value))

    def _bookmark(self) -> None:
        meta = {"resourceVersion": str(self.store.revision)}
        head = {"kind": self.target.kind.kind, "apiVersion": self.target.api_version}
        rest = EMPTY.get(self.target.kind.kind, {})
        self._lines.append(_frame("BOOKMARK", head | {"metadata": meta} | rest))

    def say(self, line: bytes) -> None:
        """A fault: send these bytes as they are, in their turn."""
        self._lines.append(line)
        self._wake.set()

    def bookmark(self) -> None:
        """Send a bookmark now, if the client allows them."""
        if self._bookmarks:
            self._bookmark()
            self._wake.set()

    def finish(self) -> None:
        """End the watch once everything is sent, as the server does at its time-out."""
        self._over = True
        self._wake.set()

    def close(self) -> None:
        """Hear of no more changes."""
        if self._listens:
            self.store.unlisten(self.target.kind.resource, self._changed)

    async def batches(self) -> AsyncIterator[bytes]:
        """Whole lines, as many as there are; ends at the time-out or at `finish`."""
        clock = asyncio.get_running_loop().time
        end = clock() + float(self.query.get("timeoutSeconds") or LONGEST)
        mark = self._next_mark(clock(), end)
        while True:
            if self._bookmarks and clock() >= mark:
                self._bookmark()
                mark = clock() + BOOKMARK_EVERY
            if self._lines:
                batch = b"".join(self._lines)
                self._lines.clear()
                yield batch
            elif self._over or clock() >= end:
                return
            else:
                await self._woken(min(mark, end) - clock())

    async def _woken(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()

    def _next_mark(self, now: float, end: float) -> float:
        """A bookmark comes every minute, and two seconds before the end."""
        if not self._bookmarks:
            return end
        before_end = end - BOOKMARK_BEFORE_END
        return min(before_end, now + BOOKMARK_EVERY) if before_end > now else now + BOOKMARK_EVERY


def _frame(kind: str, value: Json) -> bytes:
    return msgspec.json.encode({"type": kind, "object": value}) + b"\n"
