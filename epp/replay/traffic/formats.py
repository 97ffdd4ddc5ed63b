"""The formats of traffic in files, recognised by the first lines; other lines are counted.

This module knows the fields of each format; the format's own module knows what they mean.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from epp.errors import ConfigError
from epp.printable import printable
from epp.replay.traffic import (
    aiperf,
    lmcache,
    load_generators,
    mooncake,
    openai_logs,
    servegen,
    tabular,
    vllm_log,
)
from epp.replay.traffic.calls import Call, Trace, ordered
from epp.replay.traffic.files.source import UNREADABLE, Problems, Source
from epp.replay.traffic.recorded import parts

Reader = Callable[[Source, Problems, int], Sequence[Call]]
"""Reads all calls of a source; the seed draws what is not recorded, such as times in a second."""


class Format(NamedTuple):
    """A format: its name, what its lines have, and whether a line's fields are of this format.

    `closed`: its traces are a closed loop (`Trace`).
    """

    name: str
    has: str
    knows: Callable[[frozenset[str]], bool]
    read: Reader
    closed: bool = False


def _having(name: str, fields: frozenset[str], read: Reader, *, closed: bool = False) -> Format:
    return Format(name, ", ".join(sorted(fields)), fields.issubset, read, closed)


_HEAD = 20
"""Lines by which a format is told."""
_SHOWN = 2000
"""Characters of an error."""
_ADVICE = (
    "; an array becomes lines with `jq -c '.[]'`, and docs/replay-traffic.md#other-logs tells how"
    " to convert other logs"
)
_SERVEGEN = frozenset({servegen.FILES})
_VLLM_LOG = frozenset({vllm_log.MARK.decode().strip()})

_AIPERF = _having("aiperf's sessions", aiperf.FIELDS, aiperf.read)

FORMATS = (
    _AIPERF,
    _having("recordings of epp serve --record", parts.FIELDS, parts.read),
    _having("Qwen-Bailian's traces", mooncake.BAILIAN_FIELDS, mooncake.read_bailian),
    _having("Mooncake's traces", mooncake.FIELDS, mooncake.read),
    _having("LMCache's agent traces", lmcache.FIELDS, lmcache.read, closed=True),
    _having(
        "vllm bench serve --save-result --save-detailed",
        load_generators.VLLM_FIELDS,
        load_generators.read_vllm,
    ),
    _having("guidellm's JSON", load_generators.GUIDELLM_FIELDS, load_generators.read_guidellm),
    _having("ServeGen's clients", _SERVEGEN, servegen.read),
    _having("vLLM's log", _VLLM_LOG, vllm_log.read),
    Format(
        "logs of OpenAI's API",
        "request or body, with messages, prompt or input",
        lambda fields: bool(fields & openai_logs.BODIES),
        openai_logs.read,
    ),
    Format(
        "times and lengths, as Azure's CSV",
        "a time, tokens of the prompt and of the response",
        tabular.is_tabular,
        tabular.read,
    ),
)
"""The first whose fields a line has is the file's format."""


def read_file(path: Path, *, seed: int = 0, strict: bool = False) -> Trace:
    """Read traffic from a file or folder.

    Lines that cannot be used are left out and counted, or raise if reading is `strict`. Raises
    `ConfigError`, also if nothing is left.
    """
    problems = Problems(strict=strict)
    source = Source(path)
    try:
        found = _format_of(source)
        calls = found.read(source, problems, seed)
    except ConfigError as error:  # may have words of the file
        raise ConfigError(printable(error.problem, _SHOWN), printable(error.place)) from error
    if not calls:
        raise ConfigError(f"{path} holds no request that can be used{problems.first}{_ADVICE}")
    return Trace(
        name=source.name,
        calls=calls if found.closed else ordered(calls),
        closed=found.closed,
        skipped=problems.skipped,
        reordered=problems.reordered,
        problems=tuple(problems.shown),
    )


def _format_of(source: Source) -> Format:
    """Return the format of a source, by its first lines. Raises `ConfigError`."""
    if source.is_folder and any(source.path.glob(servegen.FILES)):
        return next(each for each in FORMATS if each.read is servegen.read)
    problems = Problems()
    head = list(islice(source.lines(problems), _HEAD))
    if not head:
        nothing = f"{source.path} is empty, or cut off: it holds no request"
        raise ConfigError(f"{nothing}{problems.first}")
    documents = [line.text for line in head]
    if documents[0] in {b"{", b"["}:
        documents = [source.document()]  # one that is written over many lines
    # The first turn of a session has no `delay`, and may look like a line of another format.
    known = list(map(_fields, documents))
    if any(map(_AIPERF.knows, known)):
        return _AIPERF
    for fields in known:
        for each in FORMATS:
            if each.knows(fields):
                return each
    formats = "; ".join(f"{each.name} ({each.has})" for each in FORMATS)
    raise ConfigError(
        f"{source.path} is of no known format: none of its first lines has the fields of one."
        f" The formats are: {formats}{_ADVICE}"
    )


def _fields(text: bytes) -> frozenset[str]:
    """Return the fields that a line, or a whole document, has: of JSON, CSV or a log."""
    if servegen.is_window(text):
        return _SERVEGEN
    if vllm_log.MARK in text and not text.startswith(b"{"):
        return _VLLM_LOG
    try:
        row = msgspec.json.decode(text, type=list[msgspec.Raw] | dict[str, msgspec.Raw])
        if isinstance(row, list):
            row = msgspec.json.decode(row[0], type=dict[str, msgspec.Raw]) if row else {}
        return frozenset(row)
    except UNREADABLE:
        # A table has lengths alone, whatever else its columns are called.
        return tabular.fields_of(text) - openai_logs.BODIES
