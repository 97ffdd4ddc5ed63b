"""The thread that writes a recording.

It takes notes from a queue, gathers lines for a moment, and writes them as one gzip member. It lets
other threads run after each line, so the event loop never waits long for it.
"""

import contextvars
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
from typing import Final

import msgspec

from epp.adapters.recording.notes import LineWriter, Note
from epp.adapters.recording.parts import Parts
from epp.protocol.recording import (
    KEY_BYTES,
    VERSION,
    RecordedLine,
    RecordedLoss,
    RecordedPool,
    RecordingHeader,
    encode_line,
)
from epp.system.logs import Log

_log = Log(__name__)

_MEMBER_BYTES: Final = 1 << 18
"""Bytes of lines that are compressed together."""
_SALT_BYTES: Final = 4
_STOP_SECONDS: Final = 5.0


class RecordingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pool's traffic is recorded, and the facts about it in the headers of parts.

    Lines are gathered for `gather` seconds; a crash loses that much. After an error nothing is
    written for `retry` seconds.
    """

    folder: Path
    most_bytes: int = 1 << 30
    pool: str = "default"
    configuration: str = ""
    base_model: str = ""
    gather: float = 0.5
    retry: float = 30.0


class RecordingWriter:
    """Writes what is put into `queue`; other threads read its counts.

    `written` requests are in a part, `failed` could not be written, and `dropped` ones, which the
    caller counts, were never put. `blocks_taken` counts the blocks of notes that left the queue.
    `clock` returns seconds; times in the recording start at `began`.
    """

    def __init__(
        self, settings: RecordingSettings, clock: Callable[[], float], began: float
    ) -> None:
        self.queue: SimpleQueue[Note | RecordedPool | None] = SimpleQueue()
        self.written = self.failed = self.bytes = self.blocks_taken = self.dropped = 0
        self._settings = settings
        self._clock = clock
        self._began = began
        started, salt = datetime.now(UTC), secrets.token_hex(_SALT_BYTES)
        self._parts = Parts(settings.folder, settings.pool, salt, started, settings.most_bytes)
        self._header = RecordingHeader(
            version=VERSION,
            salt=salt,
            part=0,
            started=started.isoformat(timespec="milliseconds"),
            pool=settings.pool,
            configuration=settings.configuration,
            base_model=settings.base_model,
        )
        self._lines = LineWriter(os.urandom(KEY_BYTES), began)
        self._pool: RecordedPool | None = None
        self._lost = 0
        self._fails_until: float | None = None
        self._stopping = threading.Event()
        context = contextvars.copy_context()  # its log lines name the pool
        self._thread = threading.Thread(
            target=context.run, args=(self._run,), name="recording", daemon=True
        )

    def start(self) -> None:
        """Start the thread, which opens a part at once, so that a bad folder is logged now."""
        self._thread.start()

    def stop(self) -> None:
        """Write what was put, and end; do not wait for a hanging disk beyond some seconds."""
        self.queue.put(None)
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        self._ready()
        going = True
        while going:
            noted = [self.queue.get()]
            self._stopping.wait(self._settings.gather)
            noted += [self.queue.get() for _ in range(self.queue.qsize())]
            going = None not in noted
            self._write(each for each in noted if each is not None)
        self._parts.close()

    def _write(self, noted: Iterable[Note | RecordedPool]) -> None:
        lines: list[bytes] = []
        requests = size = 0
        for each in noted:
            ready = bool(lines) or self._ready()
            self._took(each)
            if not ready:
                self.failed += isinstance(each, Note)
                continue
            line = self._line_of(each)
            lines.append(line)
            size += len(line)
            requests += isinstance(each, Note) and bool(line)
            if size >= _MEMBER_BYTES:
                self._append(lines, requests)
                lines, requests, size = [], 0, 0
            # Releases the GIL, for which the event loop may be waiting: a thread that computes is
            # made to release it only after 5 ms (`sys.getswitchinterval`), which every request
            # that comes while a batch is written would wait. A line takes some 0.1 ms.
            time.sleep(0)
        if lines:
            self._append(lines, requests)

    def _took(self, noted: Note | RecordedPool) -> None:
        """Note what left the queue, whether it can be written or not."""
        if isinstance(noted, RecordedPool):
            self._pool = noted
        elif noted.quote is not None:
            self.blocks_taken += noted.quote.blocks

    def _line_of(self, noted: Note | RecordedPool) -> bytes:
        """Return a line; empty if it cannot be encoded, which is counted and logged."""
        if isinstance(noted, RecordedPool):
            return encode_line(noted)
        try:
            return encode_line(self._lines.line(noted))
        except Exception as error:  # noqa: BLE001 (one request must not end the recording)
            self.failed += 1
            _log.error("recording.failed", error=f"{type(error).__name__}: {error}")
            return b""

    def _ready(self) -> bool:
        """Return whether lines can be written, in a new part if that is due."""
        if self._fails_until is not None and self._clock() < self._fails_until:
            return False
        try:
            if self._parts.full:
                self._begin_part()
        except OSError as error:
            self._failed(error)
            return False
        return True

    def _begin_part(self) -> None:
        self._parts.begin()
        self._lines.begin_part()
        header = msgspec.structs.replace(self._header, part=self._parts.part)
        lines: list[RecordedLine] = [header, *([self._pool] if self._pool else [])]
        self.bytes += self._parts.append(b"".join(map(encode_line, lines)))
        if self._fails_until is not None or self._parts.part == 1:
            self._fails_until = None
            _log.info("recording", folder=str(self._settings.folder), salt=self._header.salt)

    def _append(self, lines: list[bytes], requests: int) -> None:
        lost = self.dropped + self.failed
        if lost > self._lost:
            at = round(self._clock() - self._began, 6)
            lines.insert(0, encode_line(RecordedLoss(at=at, requests=lost - self._lost)))
        try:
            self.bytes += self._parts.append(b"".join(lines))
        except OSError as error:
            self.failed += requests
            self._failed(error)
            return
        self.written += requests
        self._lost = lost

    def _failed(self, error: OSError) -> None:
        """Log an error once, and start a new part when it may be over."""
        self._parts.close()
        if self._fails_until is None:
            _log.error(
                "recording.failed",
                folder=str(self._settings.folder),
                error=error.strerror or str(error),
                instead="requests are served and not recorded",
                again_in=self._settings.retry,
            )
        self._fails_until = self._clock() + self._settings.retry
