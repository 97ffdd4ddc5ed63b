"""Attacks by whoever writes the endpoints file, and shortages of files."""

import asyncio
import os
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.adversary.attack import Attack, BoundBroken
from bench.adversary.ground import SERVERS, Ground
from bench.adversary.servers import hostile

_HEARD_S = 5.0
_READ_S = 2.0
_READY = "llm_d_epp_ready_endpoints"
_ENTRY = b"- {name: a, address: 127.0.0.1, port: 1}\n"
_LAUGHS = b"".join(
    b"a%d: &a%d [%b]\n" % (each, each, b",".join([b"*a%d" % (each - 1)] * 9))
    for each in range(1, 12)
)
_MERGES = b"".join(
    b"m%d: &m%d {<<: [%b]}\n" % (each, each, b",".join([b"*m%d" % (each - 1)] * 9))
    for each in range(1, 12)
)
TEXTS: dict[str, bytes] = {
    "empty": b"",
    "no-yaml": b"\x00\xff{[}",
    "bool": b"endpoints: !!bool x\n",
    "int": b'endpoints: !!int ""\n',
    "float": b"endpoints: !!float x\n",
    "timestamp": b"endpoints: !!timestamp 9999-99-99\n",
    "binary": b"endpoints: !!binary x\n",
    "python": b"endpoints: !!python/object/apply:os.system [exit]\n",
    "set": b"endpoints: !!set {a, b}\n",
    "laughs": b"a0: &a0 x\n" + _LAUGHS + b"endpoints: *a11\n",
    "merges": b"m0: &m0 {a: b}\n" + _MERGES + b"endpoints: [*m11]\n",
    "cycle": b"endpoints: &a [*a]\n",
    "deep": b"endpoints: " + b"[" * 100_000,
    "deep-keys": b"endpoints: " + b"{a: " * 100_000,
    "question-marks": b"? " * 50_000,
    "twice": b"endpoints: []\nendpoints:\n" + _ENTRY,
    "many": b"endpoints:\n" + _ENTRY * 100_000,
    "many-keys": b"endpoints:\n- {" + b",".join(b"k%d: 1" % n for n in range(100_000)) + b"}\n",
    "long-name": b"endpoints:\n- {address: 127.0.0.1, port: 1, name: " + b"a" * 4_000_000 + b"}\n",
    "long-number": b"endpoints:\n- {name: a, address: 127.0.0.1, port: " + b"9" * 10_000 + b"}\n",
    "sexagesimal": b"endpoints:\n- {name: a, address: 127.0.0.1, port: " + b"1:" * 9_999 + b"1}\n",
    "unhashable": b"? [a]\n: b\n",
    "documents": b"--- {}\n" * 50_000,
    "surrogate": b'endpoints: "\\ud800"\n',
}


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 30)


PLACES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "zero": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "sparse": _sparse,
    "loop": lambda path: path.symlink_to(path),
    "unreadable": lambda path: path.symlink_to("/proc/self/mem"),
}


async def _becomes(ground: Ground, wanted: int) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + _HEARD_S
    while (found := await ground.metric(_READY)) < wanted:
        if loop.time() > end:
            raise BoundBroken(f"{found:g} of {wanted} endpoints are known after {_HEARD_S:g} s")
        await asyncio.sleep(0.1)


async def _written(ground: Ground, make: Callable[[Path], object]) -> int:
    """Something else lies in the file's place for a while; a change after it must be heard."""
    draft = ground.endpoints.with_name("hostile")
    make(draft)
    if draft.is_dir():
        ground.endpoints.unlink()
    draft.rename(ground.endpoints)
    await asyncio.sleep(_READ_S)
    if ground.endpoints.is_dir():
        ground.endpoints.rmdir()
    async with hostile(lambda: iter((b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",))) as port:
        ground.know(port)
        await _becomes(ground, SERVERS + 1)
        ground.know()
        await asyncio.sleep(0.5)
    return 4 << 20


async def _shortage(ground: Ground) -> int:
    """No file can be opened while the endpoints change; afterwards the change must be heard."""
    before = resource.prlimit(ground.pid, resource.RLIMIT_NOFILE)
    async with hostile(lambda: iter((b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",))) as port:
        resource.prlimit(ground.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            ground.know(port)
            await asyncio.sleep(_READ_S)
        finally:
            resource.prlimit(ground.pid, resource.RLIMIT_NOFILE, before)
        await _becomes(ground, SERVERS + 1)
        ground.know()
        await asyncio.sleep(0.5)
    return 0


def attacks() -> Iterator[Attack]:
    """Contents, then other things than files, then a shortage."""
    for name, text in TEXTS.items():
        strike = partial(_written, make=partial(Path.write_bytes, data=text))
        yield Attack(name=f"file-{name}", group="endpoints-file", strike=strike, most_mb=128)
    for name, make in PLACES.items():
        strike = partial(_written, make=make)
        yield Attack(name=f"file-{name}", group="endpoints-file", strike=strike, most_mb=128)
    yield Attack(name="no-files-left", group="descriptors", strike=_shortage)
