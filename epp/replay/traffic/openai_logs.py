"""Logs of OpenAI's API: on each line a request and its response or usage; and batch files.

Conversations are found by their text: a chat that begins with all messages of an earlier one
continues it. Text is cut message by message; counted tokens are distributed by character.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from epp.replay.traffic.bounds import MAX_TOKENS, Budget, check_lengths, limit_of
from epp.replay.traffic.calls import Call, Runs, TokenNames, joined, tokens_in
from epp.replay.traffic.files.source import UNREADABLE, Problems, Source, in_order
from epp.replay.traffic.tabular import ANTHROPIC_CACHED, seconds
from epp.replay.traffic.texts import ROLE_TOKENS, Texts

TIMES = (
    *("timestamp", "time", "ts", "@timestamp", "created", "start_time", "startTime"),
    *("request_created_at", "created_at"),  # Helicone's; Portkey's and Cloudflare's
)
REQUESTS = ("request", "body", "request_body", "requestBody")
BODIES = frozenset({*REQUESTS, "messages", "prompt"})
"""Fields of which a line of a log has one."""
RESPONSES = ("response", "response_body", "responseBody")
STATUSES = (
    *("status_code", "status", "statusCode"),
    *("response_status_code", "response_status"),  # Portkey's; Helicone's
)
FAILURES = frozenset({"failure", "failed"})
"""What LiteLLM and the responses API have as status of a request that was not served."""
_OF_EVENTS = ("created", "created_at", "error", "output", "status", "usage")
"""What events of a stream say of the response, beside its text."""
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_FAILED = 400
"""The least HTTP status of a request that was not served."""
UNKNOWN_RESPONSE = 256
"""Tokens of a response whose text, length and limit are all unknown."""


class Logged(NamedTuple):
    """A request as logged: messages or token ids, and its response, as far as they are known."""

    place: str
    """The place of its line."""
    at: float
    """When it came; NaN if that is not logged."""
    messages: Sequence[tuple[str, str]]
    """Roles and texts."""
    tokens: Sequence[int]
    """Token ids, in place of messages."""
    response: str
    """The text of the response."""
    prompt_tokens: int | None
    """The length of the prompt, as logged."""
    response_tokens: int | None
    """The length of the response, as logged."""
    limit: int | None
    """The client's limit on the response."""
    user: str
    """Who asked."""


def read(source: Source, problems: Problems, _: int) -> list[Call]:
    """Read a log. If no line has a time, as in a batch file, all requests come at once.

    Raises `ConfigError`.
    """
    rows = in_order(_rows(source, problems), lambda row: row.at, problems)
    per_character = _per_character(rows)
    rows = [row for row in rows if _fits(row, per_character, problems)]
    texts = Texts(per_character)
    sessions, calls, budget = _Sessions(), list[Call](), Budget(str(source.path))
    for number, row in enumerate(rows):
        parts = [texts.message(text, role) for role, text in row.messages]
        ends = tuple(accumulate(map(tokens_in, parts)))
        # What the template writes before an answer: so the answer begins as it will be quoted.
        header = texts.message("", "assistant") if row.messages and row.messages[0][0] else ()
        prompt = joined(*parts, header, texts.tokens(row.tokens))
        after, session = sessions.place(number, row)
        call = Call(
            at=0.0 if math.isnan(row.at) else row.at - rows[0].at,
            prompt=prompt,
            response=_response(texts, row, number),
            session=session,
            after=after,
            marks=ends or (len(row.tokens),),
            max_tokens=row.limit,
            tenant=row.user,
        )
        calls.append(budget(call))
    return calls


def _response(texts: Texts, row: Logged, number: int) -> Runs:
    known = row.response_tokens
    if known is None and not row.response:
        known = row.limit or UNKNOWN_RESPONSE
    return texts.response(row.response, known, number)


def _per_character(rows: Sequence[Logged]) -> float:
    """Return how many tokens a character makes, by the lines that count them."""
    counted = [
        (row.prompt_tokens, sum(len(text) for _, text in row.messages))
        for row in rows
        if row.prompt_tokens and row.messages
    ]
    characters = sum(size for _, size in counted)
    ratio = sum(tokens for tokens, _ in counted) / characters if characters else 0.25
    return min(4.0, max(0.05, ratio))


def _fits(row: Logged, per_character: float, problems: Problems) -> bool:
    """Return whether a request is within the bounds; note one that is longer."""
    characters = max(sum(len(text) for _, text in row.messages), len(row.response))
    tokens = characters * per_character + len(row.messages) * (1 + ROLE_TOKENS) + len(row.tokens)
    if tokens > MAX_TOKENS:
        problems.skip(row.place, f"its text has more than {MAX_TOKENS:,} tokens")
    return tokens <= MAX_TOKENS


class _Sessions:
    """Finds the earlier request that another one begins with."""

    def __init__(self) -> None:
        self._ids = TokenNames()
        self._ends: dict[int, int] = {}  # all messages of a request: its number
        self._of: list[int] = []

    def place(self, number: int, row: Logged) -> tuple[int | None, int]:
        """Return the request that this one continues, and its session."""
        after, key = None, -1
        for message in row.messages:
            after = self._ends.get(key, after)
            key = self._ids((key, message))
        session = number if after is None else self._of[after]
        self._of.append(session)
        if row.messages:
            self._ends[key] = number
        return after, session


def _rows(source: Source, problems: Problems) -> Iterator[tuple[str, Logged]]:
    for line in source.lines(problems):
        try:
            row = msgspec.json.decode(line.text, type=dict[str, Any])
            yield line.place, _logged(row, line.place)
        except (*UNREADABLE, ValueError, TypeError, OverflowError) as error:
            problems.undecoded(line, error)


def _logged(row: Mapping[str, Any], place: str) -> Logged:
    request = _object(_first(row, REQUESTS)) or row
    request = _object(request.get("body")) or request
    response = _answer(_first(row, RESPONSES))
    body = _answer(response.get("body"))  # as batch files have it
    for part in (row, response, body):
        _check_served(part)
    response = body or response
    usage = _object(response.get("usage")) or _object(row.get("usage")) or row
    messages, tokens = _prompt(request)
    at = _first(row, TIMES)
    at = _first(response, ("created", "created_at")) if at is None else at
    limit = _first(request, LIMITS)
    asked = _count(usage.get("prompt_tokens"))
    if asked is None and (uncached := _count(usage.get("input_tokens"))) is not None:
        asked = uncached + sum(_count(usage.get(name)) or 0 for name in ANTHROPIC_CACHED)
    answered = _count(_first(usage, ("completion_tokens", "output_tokens")))
    check_lengths(asked or 1, answered or 0)
    return Logged(
        place=place,
        at=math.nan if at is None else seconds(at),
        messages=messages,
        tokens=tokens,
        response=_said(response or row),
        prompt_tokens=asked,
        response_tokens=answered,
        limit=limit_of(limit) if isinstance(limit, int) else None,
        user=str(request.get("user") or ""),
    )


def _check_served(part: Mapping[str, Any]) -> None:
    """Raise `ValueError` if a line, its response, or the body of that, says that it failed."""
    error, status = part.get("error"), _first(part, STATUSES)
    if error:
        raise ValueError(f"it failed: {_text(_object(error).get('message') or error)}")
    is_number = isinstance(status, int | float) or str(status).isdecimal()
    if str(status) in FAILURES or (is_number and float(status) >= _FAILED):
        raise ValueError(f"it failed: {status}")


def _prompt(request: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[int]]:
    """Return the messages of a request, and its token ids if it has those.

    Raises `ValueError` for one that has neither.
    """
    messages: list[tuple[str, str]] = []
    if request.get("tools"):
        messages.append(("tools", _text(request["tools"])))
    instructed = filter(None, map(request.get, ("system", "instructions")))
    messages += [("system", _text(each)) for each in instructed]
    asked = _first(request, ("messages", "input", "prompt"))
    if isinstance(asked, list) and asked and all(isinstance(each, int) for each in asked):
        return [], asked
    if isinstance(asked, str) and asked:
        messages.append(("user" if "input" in request else "", asked))
    elif isinstance(asked, list):
        messages += [_message(each) for each in asked]
    if not any(text for _, text in messages):
        raise ValueError("its request has no `messages`, `prompt` or `input` with text")
    return messages, []


def _message(message: object) -> tuple[str, str]:
    if not isinstance(message, dict):
        return "", _text(message)
    extra = {name: message[name] for name in ("tool_calls", "arguments") if message.get(name)}
    said = _text(message.get("content") or message.get("output") or "")
    return str(message.get("role") or message.get("type") or ""), said + _text(extra or "")


def _answer(value: object) -> Mapping[str, Any]:
    """Return a response, also one that is logged as its text or as the events of its stream."""
    if not isinstance(value, str) or value.startswith("{") or not value:
        return _object(value)
    if not value.startswith(("data:", "event:", ":")):
        return {"text": value}
    lines = [line for line in value.splitlines() if line.startswith("data:")]
    events = [_object(line.removeprefix("data:").strip()) for line in lines]
    # Events of the Responses API have the response as it is by then, the last one all of it.
    parts = [*events, *(_object(each.get("response")) for each in events)]
    kept = {name: each[name] for each in parts for name in _OF_EVENTS if each.get(name)}
    return {"text": "".join(map(_said, events)), **kept}


def _said(response: Mapping[str, Any]) -> str:
    """Return the text of a response: of a chat, a completion, or the Responses API."""
    for choice in response.get("choices") or ():
        each = _object(choice)
        message = each.get("message") or each.get("delta")
        return _message(message)[1] if message else _text(each.get("text") or "")
    said = _first(response, ("output", "output_text", "content", "text")) or ""
    return "".join(_message(each)[1] for each in said) if isinstance(said, list) else _text(said)


def _text(content: object) -> str:
    """Return content as text; parts that are not text stay JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(_text(each) for each in content)
    if isinstance(content, dict) and isinstance(content.get("text"), str):
        return str(content["text"])
    return msgspec.json.encode(content).decode()


def _first(values: Mapping[str, Any], names: Sequence[str]) -> Any:  # noqa: ANN401 - JSON
    return next((values[name] for name in names if values.get(name) is not None), None)


def _object(value: object) -> Mapping[str, Any]:
    """Return an object, also one that is logged as text; an empty one for anything else."""
    if isinstance(value, str) and value.startswith("{"):
        value = msgspec.json.decode(value)
    return value if isinstance(value, dict) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
