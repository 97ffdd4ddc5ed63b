"""vLLM's own log with --enable-log-requests (vllm/entrypoints/serve/utils/request_logger.py).

Since 0.11, prompts are only logged at the level DEBUG. Without --enable-log-outputs, only the limit
of a response is known. The log has whole seconds; times are drawn within them.
"""

import ast
import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from epp.replay.traffic.bounds import MAX_REQUESTS, Budget, check_lengths, limit_of, too_much
from epp.replay.traffic.calls import Call, tokens_in
from epp.replay.traffic.files.source import Problems, Source, SourceLine, in_order
from epp.replay.traffic.openai_logs import UNKNOWN_RESPONSE
from epp.replay.traffic.texts import Texts

MARK = b"Received request "
_TIME = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)")
_ESCAPE = r"""\\(?:[abfnrtv\\'"]|x[\da-f]{2}|u[\da-f]{4}|U000[\da-f]{5}|U0010[\da-f]{4})"""
"""An escape of Python's `repr`."""
_TEXT = rf"""(?:'(?:[^'\\\0-\x1f]++|{_ESCAPE})*+'|"(?:[^"\\\0-\x1f]++|{_ESCAPE})*+"|None)"""
_IDS = r"(?:\[[\d, ]*+\]|None)"
_ID = re.compile(r"\d{1,18}")
_RECEIVED = re.compile(r"Received request (\S+?): (.*)", re.DOTALL)
_DETAILS = re.compile(r"Request (\S+) details: (.*)", re.DOTALL)
_GENERATED = re.compile(
    r"Generated response (\S+)(?: \(streaming (?:complete|delta)\))?(?:: | details: )"
    rf"(?:output: ({_TEXT}))?(?:(?:, )?output_token_ids: ({_IDS}))?"
)
_PROMPT = re.compile(rf"prompt: ({_TEXT})")
_PROMPT_IDS = re.compile(rf"prompt_token_ids: ({_IDS})")
_LIMIT = re.compile(r"max_tokens=(\d{1,18})\b")
_ADAPTER = re.compile(r"lora_name='([^']*)'")
_LEAP_YEAR, _YEAR_SECONDS = 2024, 366 * 86_400.0


class _Seen(msgspec.Struct):
    """What the log has said about a request so far; a streamed response comes in pieces."""

    place: str
    at: float
    prompt: str = ""
    prompt_ids: Sequence[int] = ()
    response: list[str] = []
    response_ids: list[int] = []
    limit: int | None = None
    adapter: str = ""

    def read_prompt(self, text: str) -> None:
        """Take a prompt's text and token ids from a line."""
        prompt, ids = _PROMPT.search(text), _PROMPT_IDS.search(text)
        self.prompt = _text(prompt[1] if prompt else None) or self.prompt
        self.prompt_ids = _ids(ids[1] if ids else None) or self.prompt_ids


def read(source: Source, problems: Problems, seed: int) -> list[Call]:
    """Read a log; lines about something other than requests are ignored. Raises `ConfigError`."""
    seen: dict[str, _Seen] = {}
    last = 0.0
    for line in source.lines(problems):
        last = _read_line(line, seen, last, problems)
        if len(seen) > MAX_REQUESTS:
            raise too_much(line.place)
    rows = ((each.place, each) for each in seen.values())
    asked = in_order(rows, lambda each: each.at, problems, noted=False)
    texts, draw, budget = Texts(), random.Random(seed), Budget(str(source.path))
    timed = ((each.at - asked[0].at + draw.random(), each) for each in asked)
    return [
        budget(call)
        for number, (at, each) in enumerate(sorted(timed, key=lambda pair: pair[0]))
        for call in _call(each, at, number, texts, problems)
    ]


def _read_line(line: SourceLine, seen: dict[str, _Seen], last: float, problems: Problems) -> float:
    """Read a line; return its time, or the last known one if it has none."""
    text = line.text.decode(errors="replace")
    if received := _RECEIVED.search(text):
        at = _time(text, last)
        if at is None:
            problems.skip(line.place, "it has no time, as 11-22 10:00:00")
            return last
        if at < last:
            problems.reorder(line.place)
        limit, adapter = _LIMIT.search(received[2]), _ADAPTER.search(received[2])
        request = seen.setdefault(received[1], _Seen(line.place, at))
        request.at = at
        request.limit = limit_of(int(limit[1])) if limit else None
        request.adapter = adapter[1] if adapter else ""
        request.read_prompt(received[2])
        return at
    if details := _DETAILS.search(text):
        # vLLM writes it before the line of the request itself.
        at = _time(text, last)
        request = seen.setdefault(
            details[1], _Seen(line.place, max(last, 0.0) if at is None else at)
        )
        request.read_prompt(details[2])
    elif (generated := _GENERATED.search(text)) and generated[1] in seen:
        request = seen[generated[1]]
        request.response.append(_text(generated[2]))
        request.response_ids += _ids(generated[3])
    return last


def _time(text: str, last: float) -> float | None:
    """Return the time of a line in seconds, given that of the `last` line; None if it has none.

    If it lacks the year, that is a leap year, or the one after `last` if the year has ended since.
    """
    found = _TIME.search(text)
    if not found:
        return None
    year, *rest = (int(part) if part else _LEAP_YEAR for part in found.groups())
    try:
        at = datetime(year, *rest, tzinfo=UTC).timestamp()  # type: ignore[arg-type,misc]
    except ValueError:
        return None
    return at if found[1] else at + _YEAR_SECONDS * max(0, round((last - at) / _YEAR_SECONDS))


def _call(seen: _Seen, at: float, number: int, texts: Texts, problems: Problems) -> Iterator[Call]:
    prompt = texts.tokens(seen.prompt_ids) or texts.message(seen.prompt)
    if not prompt:
        advice = "let vLLM log prompts with VLLM_LOGGING_LEVEL=DEBUG"
        problems.skip(seen.place, f"nothing is known of its prompt; {advice}")
        return
    said = "".join(seen.response)
    known = None if said else (seen.limit or UNKNOWN_RESPONSE)
    response = texts.tokens(seen.response_ids) or texts.response(said, known, number)
    try:
        check_lengths(tokens_in(prompt), tokens_in(response))
    except ValueError as error:
        problems.skip(seen.place, str(error))
        return
    yield Call(
        at=at,
        prompt=prompt,
        response=response,
        session=number,
        marks=(tokens_in(prompt),),
        max_tokens=seen.limit,
        adapter=seen.adapter,
    )


def _text(literal: str | None) -> str:
    """Return the text that `_TEXT` has found."""
    return (literal and ast.literal_eval(literal)) or ""


def _ids(literal: str | None) -> list[int]:
    """Return the token ids that `_IDS` has found."""
    return [int(each) for each in _ID.findall(literal or "")]
