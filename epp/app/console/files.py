"""The console's files, which are read once, and the paths at which they are served."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from epp.adapters.telemetry.debug_pages import DebugPage, Query, only

PATH: Final = b"/console"
_FOLDER: Final = Path(__file__).with_name("static")
_START: Final = "console.html"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}


def static_pages() -> dict[bytes, DebugPage]:
    """Return the pages by their paths. What is asked for later is not looked for on a disk."""
    return dict(_pages())


def _pages() -> Iterator[tuple[bytes, DebugPage]]:
    for path in sorted(_FOLDER.iterdir()):
        if path.suffix in _TYPES:
            at = PATH if path.name == _START else PATH + b"/" + path.name.encode("ascii")
            yield at, _page(path.read_bytes(), _TYPES[path.suffix])


def _page(data: bytes, content_type: str) -> DebugPage:
    async def answer(query: Query) -> bytes:
        only(query)
        return data

    etag = f'"{sha256(data).hexdigest()[:16]}"'
    return DebugPage(answer, content_type=content_type, etag=etag)
