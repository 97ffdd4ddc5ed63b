"""Traces of only times and lengths: Azure's and BurstGPT's CSV, and lines of JSON with the same.

They do not say what prompts have in common. Without a column of sessions, prompts share nothing;
with one, each prompt repeats everything said before in its session, as far as its length allows.
"""

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from epp.replay.traffic.bounds import Budget, check_lengths
from epp.replay.traffic.calls import Call, Run, TokenNames
from epp.replay.traffic.files.source import UNREADABLE, Problems, Source, SourceLine, in_order

TIMES = (
    *("TIMESTAMP", "Timestamp", "timestamp", "time", "start_time", "arrival_time"),
    *("startTime", "created_at"),  # LiteLLM's; Cloudflare's
)
PROMPTS = (
    *("ContextTokens", "Request tokens", "input_length", "input_tokens", "prompt_tokens"),
    *("num_prefill_tokens", "input_len", "tokens_in", "gen_ai.usage.input_tokens"),
)
ANTHROPIC_CACHED = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""What Anthropic's API does not count as `input_tokens` of a prompt."""
RESPONSES = (
    *("GeneratedTokens", "Response tokens", "output_length", "output_tokens"),
    *("completion_tokens", "num_decode_tokens", "output_len"),
    *("tokens_out", "gen_ai.usage.output_tokens"),
)
SESSIONS = ("session_id", "Session ID", "conversation_id")
TENANTS = ("user",)
_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""Epochs of at least these are in nanoseconds, microseconds and milliseconds."""


_MAX_CSV_BYTES = 1 << 16


class TimedLengths(msgspec.Struct, frozen=True):
    """A request: its time in seconds, its lengths in tokens; `session` is "" if it is the only one.

    An answer without tokens counts as one token, which an engine samples after the prompt anyway.
    """

    at: float
    prompt: int
    response: int
    session: str = ""
    tenant: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.at):
            raise ValueError("its time is not a number")
        check_lengths(self.prompt, self.response)


def read(source: Source, problems: Problems, _: int) -> list[Call]:
    """Read a trace of times and lengths. Raises `ConfigError`."""
    return exchanges(source, _rows(source, problems), problems, noted=True)


def exchanges(
    source: Source,
    placed: Iterable[tuple[str, TimedLengths]],
    problems: Problems,
    *,
    noted: bool = False,
) -> list[Call]:
    """Make calls of requests, given with their places; time counts from the first.

    A request earlier than the one before it is a problem if `noted`. Raises `ConfigError`.
    """
    rows = in_order(placed, lambda row: row.at, problems, noted=noted)
    ids, last = TokenNames(), dict[int, int]()
    calls, budget = list[Call](), Budget(str(source.path))
    for number, row in enumerate(rows):
        session = ids(row.session or number)
        call = Call(
            at=row.at - rows[0].at,
            prompt=(Run(session, row.prompt),),
            response=(Run(session, max(1, row.response)),),
            session=session,
            after=last.get(session),
            marks=(row.prompt,),
            tenant=row.tenant,
        )
        calls.append(budget(call))
        last[session] = number
    return calls


def fields_of(line: bytes) -> frozenset[str]:
    """Return the columns that the head of a CSV names, quoted or not."""
    try:
        return frozenset(_columns(line))
    except ValueError:
        return frozenset()


def is_tabular(fields: Iterable[str]) -> bool:
    """Whether fields have a time and both lengths."""
    known = frozenset(fields)
    return all(known & frozenset(names) for names in (TIMES, PROMPTS, RESPONSES))


def seconds(value: object) -> float:
    """Return a time in seconds. Raises `ValueError` for what is not one.

    Numbers are seconds, or an epoch in what its size tells; texts are numbers or ISO 8601.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        when = datetime.fromisoformat(str(value).strip())
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    return number * next((unit for least, unit in _UNITS if abs(number) >= least), 1.0)


def _rows(source: Source, problems: Problems) -> Iterator[tuple[str, TimedLengths]]:
    header: Sequence[str] = ()
    for line in source.lines(problems):
        try:
            if not line.text.startswith(b"{") and (not header or _is_head(line)):
                header = _columns(line.text)
            else:
                yield line.place, _exchange(_values(line, header))
        except (*UNREADABLE, ValueError, TypeError, OverflowError) as error:
            problems.undecoded(line, error)


def _is_head(line: SourceLine) -> bool:
    """Whether a file of several begins with a head of its own: a part of a file has none."""
    return line.place.endswith(":1") and is_tabular(fields_of(line.text))


def _values(line: SourceLine, header: Sequence[str]) -> Mapping[str, object]:
    if line.text.startswith(b"{"):
        return msgspec.json.decode(line.text, type=dict[str, object])
    values = _columns(line.text)
    if len(values) != len(header):
        raise ValueError(f"it has {len(values)} columns, and the head {len(header)}")
    return dict(zip(header, values, strict=True))


def _columns(line: bytes) -> Sequence[str]:
    """Return the values of a line of CSV. Raises `ValueError`."""
    if len(line) > _MAX_CSV_BYTES:
        raise ValueError(f"it has more than {_MAX_CSV_BYTES:,} bytes, too many for a line of CSV")
    try:
        return next(csv.reader([line.decode()]), ())
    except csv.Error as error:
        raise ValueError(str(error)) from error


def _exchange(values: Mapping[str, object]) -> TimedLengths:
    session, tenant = _first(values, SESSIONS, ""), _first(values, TENANTS, "")
    return TimedLengths(
        at=seconds(_first(values, TIMES)),
        prompt=_length(_first(values, PROMPTS))
        + sum(_length(values.get(name) or 0) for name in _beside(values)),
        response=_length(_first(values, RESPONSES)),
        session="" if session is None else str(session),
        tenant="" if tenant is None else str(tenant),
    )


def _first(values: Mapping[str, object], names: Sequence[str], default: object = None) -> object:
    for name in names:
        if name in values:
            return values[name]
    if default is None:
        raise ValueError(f"it has none of {', '.join(names)}")
    return default


def _beside(values: Mapping[str, object]) -> Sequence[str]:
    """Return the names of the fields that belong to a prompt, other than its length."""
    length = next(name for name in PROMPTS if name in values)
    return ANTHROPIC_CACHED if length == "input_tokens" else ()


def _length(value: object) -> int:
    number = float(str(value))
    if not number.is_integer():
        raise ValueError(f"`{value}` is not a number of tokens")
    return int(number)
