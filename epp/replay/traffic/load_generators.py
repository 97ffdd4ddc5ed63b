"""Results of load generators: `vllm bench serve --save-result --save-detailed`, guidellm's JSON.

Both have times and lengths; requests that failed are left out and counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from epp.errors import ConfigError
from epp.replay.traffic.calls import Call
from epp.replay.traffic.files.source import UNREADABLE, Problems, Source
from epp.replay.traffic.tabular import TimedLengths, exchanges

VLLM_FIELDS = frozenset({"input_lens", "output_lens"})
GUIDELLM_FIELDS = frozenset({"benchmarks"})


class _VllmResult(msgspec.Struct):
    """Lists that have an element for each request; times are of one clock, in seconds."""

    input_lens: list[int]
    output_lens: list[int]
    start_times: list[float] = []
    errors: list[str] = []


def read_vllm(source: Source, problems: Problems, _: int) -> list[Call]:
    """Read a result, or several, one after the other. Raises `ConfigError`."""
    return exchanges(source, _vllm(source, problems), problems)


def _vllm(source: Source, problems: Problems) -> Iterator[tuple[str, TimedLengths]]:
    for number, result in enumerate(_documents(source), 1):
        where = f"{source.path}, result {number}"
        try:
            run = msgspec.convert(result, _VllmResult)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {error}") from error
        count = len(run.start_times)
        if not count or len(run.input_lens) != count or len(run.output_lens) != count:
            raise ConfigError(
                f"{where}: there are {len(run.input_lens)} input_lens, {len(run.output_lens)}"
                f" output_lens and {count} start_times; run `vllm bench serve` with --save-detailed"
            )
        lengths = zip(run.start_times, run.input_lens, run.output_lens, strict=True)
        for request, (at, prompt, response) in enumerate(lengths):
            place = f"{where}, request {request + 1}"
            if request < len(run.errors) and run.errors[request]:
                problems.skip(place, f"it failed: {run.errors[request].splitlines()[-1]}")
                continue
            row = {"at": at, "prompt": prompt, "response": response}
            yield from _checked(place, row, problems)


def read_guidellm(source: Source, problems: Problems, _: int) -> list[Call]:
    """Read all benchmarks of a report, at the times they were run at. Raises `ConfigError`."""
    return exchanges(source, _guidellm(source, problems), problems)


def _guidellm(source: Source, problems: Problems) -> Iterator[tuple[str, TimedLengths]]:
    for report in _documents(source):
        for number, benchmark in enumerate(_listed(report.get("benchmarks"))):
            requests = _mapping(benchmark.get("requests"))
            for fate in ("errored", "incomplete"):
                for request in range(len(_listed(requests.get(fate)))):
                    place = f"{source.path}, benchmark {number + 1}, {fate} request {request + 1}"
                    problems.skip(place, "it was not served")
            for request, each in enumerate(_listed(requests.get("successful"))):
                place = f"{source.path}, benchmark {number + 1}, request {request + 1}"
                yield from _checked(place, _guidellm_request(each), problems)


def _guidellm_request(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return time, lengths and conversation, by the names of guidellm's versions."""
    info = _mapping(request.get("info") or request.get("scheduler_info"))
    timings = _mapping(info.get("timings") or info.get("request_timings"))
    metrics = (_mapping(request.get(f"{side}_metrics")) for side in ("input", "output"))
    asked, answered = (each.get("total_tokens", each.get("text_tokens")) for each in metrics)
    begun = request.get("start_time", timings.get("request_start"))
    return {
        "at": request.get("request_start_time", begun),
        "prompt": request.get("prompt_tokens", asked),
        "response": request.get("output_tokens", answered),
        "session": info.get("conversation_id") or "",
    }


def _checked(
    place: str, row: Mapping[str, Any], problems: Problems
) -> Iterator[tuple[str, TimedLengths]]:
    try:
        yield place, msgspec.convert(row, TimedLengths)
    except msgspec.ValidationError as error:
        problems.skip(place, str(error))


def _documents(source: Source) -> Sequence[Mapping[str, Any]]:
    """Return the documents in a file: one, a list, or one a line."""
    data = source.document()
    try:
        decoded = msgspec.json.decode(data)
    except UNREADABLE:
        try:
            decoded = [msgspec.json.decode(line) for line in data.splitlines()]
        except UNREADABLE as error:
            problem = f"{source.path} is not JSON: {error}; is it cut off?"
            raise ConfigError(problem) from error
    return _listed(decoded if isinstance(decoded, list) else [decoded])


def _listed(value: object) -> list[Mapping[str, Any]]:
    return [_mapping(each) for each in value] if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
