"""Recorded traffic: what was asked, when, and what the answer was.

This file knows no format; `bench.accuracy.mooncake` and `bench.accuracy.lmcache` do.
"""

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import zstandard

from epp.errors import ConfigError


class Content(msgspec.Struct, frozen=True):
    """A prompt as token ids and as the text that they are, and the answer as token ids.

    `marks` are the ends of its messages in tokens, `text_marks` the same in bytes.
    """

    ids: "array[int]"
    text: bytes
    answer: "array[int]"
    marks: Sequence[int] = ()
    text_marks: Sequence[int] = ()


class Call(msgspec.Struct, frozen=True):
    """A request. It comes at `at` seconds, or, where that is later, `think` seconds after the
    answer to the call numbered `after`. Its content is made when it is needed.
    """

    at: float
    content: Callable[[], Content]
    after: int | None = None
    think: float = 0.0


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of which none comes before the one it is `after`, and the pods that suit them.

    `blocks` are a pod's KV blocks of 16 tokens, the null block included.
    """

    name: str
    calls: Sequence[Call]
    pods: int
    blocks: int


def decompressed(path: Path) -> bytes:
    """Read a zstd file. Raises `ConfigError` if it cannot be read, or is not one."""
    try:
        with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
            return reader.readall()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except zstandard.ZstdError as error:
        raise ConfigError(f"{path} is not a zstd file: {error}") from error
