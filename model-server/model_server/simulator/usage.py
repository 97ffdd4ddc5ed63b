"""Token usage in the forms of the three APIs."""

from collections.abc import Sequence
from typing import Any

from model_server.simulator.scheduler import Request


def usage(requests: Sequence[Request], *, details: bool) -> dict[str, Any]:
    """`usage` of a chat, completion or embedding; `details` adds the cached tokens."""
    prompt, generated, cached = _sums(requests)
    counted: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + generated,
        "completion_tokens": generated,
        "prompt_tokens_details": None,
    }
    if details:
        counted["prompt_tokens_details"] = {"cached_tokens": cached}
    return counted


def responses_usage(requests: Sequence[Request], *, details: bool) -> dict[str, Any]:
    """`usage` of the Responses API; without `details` it reports no cached tokens."""
    prompt, generated, cached = _sums(requests)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached if details else 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0},
        "total_tokens": prompt + generated,
    }


def _sums(requests: Sequence[Request]) -> tuple[int, int, int]:
    return (
        sum(request.prompt_len for request in requests),
        sum(request.generated for request in requests),
        sum(request.cached_tokens or 0 for request in requests),
    )
