"""Lists and watch streams of the Kubernetes API, decoded into typed objects and events."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec
from msgspec.structs import replace

from epp.errors import WarmpickError
from epp.protocol.kube.objects import ApiStatus, KubeObject, StatusDetails

T = TypeVar("T", bound=KubeObject)

_GONE = 410
UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What decoding raises: of text that is not UTF-8 and of numbers of 4,301 digits `ValueError`."""
_LONGEST_RETRY = 300
"""Seconds of `Retry-After` that are heeded, at most; the API mostly asks for one."""
_LONGEST_NAME, _LONGEST_NUMBER = 253, 9
"""Characters of a name that is logged, digits of a number that is read."""
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
    def retry_after(self) -> int:
        """The seconds to wait before the next request, at least; 0 if the API does not say."""
        return min(max(0, self.status.details.retry_after_seconds), _LONGEST_RETRY)

    @property
    def expired(self) -> bool:
        """Whether a resource version or a continue token is too old: one must list again."""
        # client-go `isExpiredError`: the reason of a 410 is Gone up to 1.17, Expired since.
        return self.status.code == _GONE or self.status.reason in {"Expired", "Gone"}


class StreamBroken(WarmpickError):
    """A list or a watch sent what is not JSON of its form; the rest of it is not usable."""


class Unreadable(msgspec.Struct, frozen=True):
    """An object that does not fit its kind, by its name (empty if that cannot be read)."""

    name: str
    why: str
    resource_version: str = ""


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One event of a watch; `type` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: T


class ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """ListMeta of one page; `continue_token` is empty on the last page."""

    resource_version: str = ""
    continue_token: str = msgspec.field(default="", name="continue")


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. `unreadable` items are left out because they do not fit `kind`."""

    metadata: ListMetadata
    items: tuple[T, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


class _RawPage(msgspec.Struct, frozen=True):
    metadata: ListMetadata
    items: tuple[msgspec.Raw, ...] | None = None  # Go writes an empty list as null if it is nil


class _Named(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _NamedObject(msgspec.Struct, frozen=True):
    metadata: _Named = _Named()


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw = msgspec.Raw(b"")


_status = msgspec.json.Decoder(ApiStatus)
_raw_event = msgspec.json.Decoder(_RawEvent)
_raw_page = msgspec.json.Decoder(_RawPage)
_named_object = msgspec.json.Decoder(_NamedObject)
_NAMELESS = "it has no name"


class ObjectDecoder(Generic[T]):
    """Decodes lists and watch events of one kind of object."""

    def __init__(self, kind: type[T]) -> None:
        self._event: msgspec.json.Decoder[WatchEvent[T]] = msgspec.json.Decoder(WatchEvent[kind])  # type: ignore[valid-type]  # a type made at run time
        self._page: msgspec.json.Decoder[ListPage[T]] = msgspec.json.Decoder(ListPage[kind])  # type: ignore[valid-type]  # the same
        self._item: msgspec.json.Decoder[T] = msgspec.json.Decoder(kind)

    def page(self, body: bytes) -> ListPage[T]:
        """Decode one page of a list. Raises `StreamBroken` for what is not one."""
        with suppress(*UNREADABLE):
            page = self._page.decode(body)
            if all(each.metadata.name for each in page.items):
                return page
        return self._lenient(body)

    def _lenient(self, body: bytes) -> ListPage[T]:
        """Decode a page item by item, leaving out those that do not fit."""
        try:
            page = _raw_page.decode(body)
        except UNREADABLE as error:
            raise StreamBroken(f"not a list: {error}") from None
        found = [self._read(raw) for raw in page.items or ()]
        items = tuple(each for each in found if not isinstance(each, Unreadable))
        unreadable = tuple(each for each in found if isinstance(each, Unreadable))
        return ListPage(page.metadata, items, unreadable)

    def _read(self, raw: msgspec.Raw) -> T | Unreadable:
        try:
            found = self._item.decode(raw)
        except UNREADABLE as error:
            return _unreadable(raw, error)
        return found if found.metadata.name else Unreadable("", _NAMELESS)

    def event(self, line: bytes) -> WatchEvent[T] | Unreadable:
        """Decode one line of a watch.

        Raises `ApiRefused` for an ERROR event and `StreamBroken` for what is not an event.
        """
        try:
            event = self._event.decode(line)
        except UNREADABLE as error:
            return _unreadable(_object_of(line), error)
        if event.type == "ERROR":
            _object_of(line)  # which raises
        named = event.object.metadata.name or event.type == "BOOKMARK"
        return event if named else Unreadable("", _NAMELESS)


def _unreadable(raw: msgspec.Raw, error: Exception) -> Unreadable:
    """Return the name of an object that does not fit, and why it does not."""
    try:
        metadata = _named_object.decode(raw).metadata
    except UNREADABLE:
        return Unreadable("", str(error))
    return Unreadable(metadata.name[:_LONGEST_NAME], str(error), metadata.resource_version)


def _object_of(line: bytes) -> msgspec.Raw:
    """Return the object of an event, undecoded; raise the refusal that an ERROR event has."""
    try:
        event = _raw_event.decode(line)
        if event.type == "ERROR":
            raise ApiRefused(_status.decode(event.object))
    except UNREADABLE as error:
        raise StreamBroken(f"not an event: {error}") from None
    return event.object


def read_status(code: int, body: bytes, retry_after: str = "") -> ApiStatus:
    """Decode the Status of a response with the HTTP status `code`; only `code` if it has none.

    `retry_after` is the `Retry-After` header, of which delay-seconds are read.
    """
    try:
        status = _status.decode(body)
    except UNREADABLE:
        status = ApiStatus()
    # RFC 9110 §10.2.3: delay-seconds or a date; the API server sends delay-seconds.
    wait = status.details.retry_after_seconds
    if retry_after.isascii() and retry_after.isdecimal():
        wait = int(retry_after) if len(retry_after) <= _LONGEST_NUMBER else _LONGEST_RETRY
    return replace(status, code=code, details=StatusDetails(wait))


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
        self._held.append(piece)
        self._size += len(piece)
        if self._size > _LONGEST_LINE:
            raise StreamBroken(f"a line is longer than {_LONGEST_LINE} bytes")
