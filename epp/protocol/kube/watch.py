"""Lists and watch streams of the Kubernetes API, decoded into typed objects and events."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from epp.errors import WarmpickError
from epp.protocol.kube.objects import ApiStatus, KubeObject, StatusDetails

T = TypeVar("T", bound=KubeObject)

_GONE = 410
_LONGEST_LINE = 8 << 20
"""Bytes of one event; etcd accepts objects of at most 1.5 MiB."""


class ApiRefused(WarmpickError):
    """The API server refused a request, by an HTTP status or by an ERROR event of a watch."""

    def __init__(self, status: ApiStatus) -> None:
        super().__init__(status.message or f"HTTP status {status.code}")
        self.status = status

    @property
    def code(self) -> int:
        """The HTTP status."""
        return self.status.code

    @property
    def expired(self) -> bool:
        """Whether a resource version or a continue token is too old: one must list again."""
        # client-go `isExpiredError`: the reason of a 410 is Gone up to 1.17, Expired since.
        return self.status.code == _GONE or self.status.reason in {"Expired", "Gone"}


class StreamBroken(WarmpickError):
    """A list or a watch sent what is no JSON of its form; the rest of it is not usable."""


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One event of a watch; `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: T


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """ListMeta of one page; `continue_token` is empty on the last page."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. `undecodable` counts items left out because they do not fit `kind`."""

    metadata: ListMetadata
    items: tuple[T, ...] = ()
    undecodable: int = 0


class _RawPage(msgspec.Struct, frozen=True):
    metadata: ListMetadata
    items: tuple[msgspec.Raw, ...] = ()


class _EventType(msgspec.Struct, frozen=True):
    type: str


class _ErrorEvent(msgspec.Struct, frozen=True):
    object: ApiStatus


_status = msgspec.json.Decoder(ApiStatus)
_event_type = msgspec.json.Decoder(_EventType)
_error_event = msgspec.json.Decoder(_ErrorEvent)
_raw_page = msgspec.json.Decoder(_RawPage)


class ObjectDecoder(Generic[T]):
    """Decodes lists and watch events of one kind of object."""

    def __init__(self, kind: type[T]) -> None:
        self._event: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(WatchEvent[kind])  # type: ignore[valid-type]  # a type made at run time
        self._page: msgspec.json.Decoder[ListPage[T]] = msgspec.json.Decoder(ListPage[kind])  # type: ignore[valid-type]  # the same
        self._item: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def page(self, body: bytes) -> ListPage[T]:
        """Decode one page of a list. Raises `StreamBroken` for what is none."""
        try:
            return self._page.decode(body)
        except msgspec.ValidationError:
            return self._lenient(body)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StreamBroken(f"not a list: {error}") from None

    def _lenient(self, body: bytes) -> ListPage[T]:
        """Decode a page item by item, leaving out those that do not fit."""
        try:
            page = _raw_page.decode(body)
        except msgspec.ValidationError as error:
            raise StreamBroken(f"not a list: {error}") from None
        items = []
        for raw in page.items:
            try:
                items.append(self._item.decode(raw))
            except msgspec.ValidationError:
                continue
        return ListPage(page.metadata, tuple(items), len(page.items) - len(items))

    def event(self, line: bytes) -> WatchEvent[T] | None:
        """Decode one line of a watch; None for an object that does not fit its kind.

        Raises `ApiRefused` for an ERROR event and `StreamBroken` for what is no event.
        """
        try:
            event = self._event.decode(line)
            if event.type != "ERROR":
                return event
        except msgspec.ValidationError as error:
            _refuse(line, error)
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StreamBroken(f"not an event: {error}") from None
        _refuse(line)
        return None


def _refuse(line: bytes, error: msgspec.ValidationError | None = None) -> None:
    """Raise the refusal of an ERROR event; return for an event of an object that does not fit."""
    try:
        if _event_type.decode(line).type != "ERROR":
            return
        status = _error_event.decode(line).object
    except msgspec.ValidationError:
        raise StreamBroken(f"not an event: {error}") from None
    raise ApiRefused(status)


def read_status(code: int, body: bytes, retry_after: str = "") -> ApiStatus:
    """Decode the Status of a response with the HTTP status `code`; only `code` if it has none.

    `retry_after` is the `Retry-After` header, of which delay-seconds are read.
    """
    try:
        status = _status.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        status = ApiStatus()
    # RFC 9110 §10.2.3: delay-seconds or a date; the API server sends delay-seconds.
    if retry_after.isdecimal():
        return replace(status, code=code, details=StatusDetails(int(retry_after)))
    return replace(status, code=code)


class LineSplitter:
    """Splits a stream, whose chunks may end anywhere, into lines: a watch has one event on each."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the lines completed by `chunk`. Raises `StreamBroken` for one that is too long."""
        first, *others = chunk.split(b"\n")
        self._hold(first)
        for other in others:
            line = b"".join(self._held)
            self._held, self._size = [], 0
            if line.strip():
                yield line
            self._hold(other)

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._held.append(piece)
            self._size += len(piece)
            if self._size > _LONGEST_LINE:
                raise StreamBroken(f"a line is longer than {_LONGEST_LINE} bytes")
