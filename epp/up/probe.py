"""The first look at model servers: which models they serve, and what would stop traffic."""

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from epp.up.pages import MAX_METRICS_BYTES, MAX_MODELS_BYTES, ServerPages, problem_of
from epp.up.servers import Address, ModelServer

PROBE_SECONDS = 3.0
_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What one address answered: the names of its models, and what is wrong, for people.

    `wants_key`: it refuses requests without an API key, or with the one it was sent.
    """

    address: Address
    models: tuple[str, ...] = ()
    problem: str = ""
    wants_key: bool = False


async def probe(
    addresses: Iterable[Address],
    servers: Iterable[ModelServer],
    context: ssl.SSLContext | None,
    api_key: str,
) -> Sequence[Probe]:
    """Ask all at once for `/v1/models` and `/metrics`, as `ServerPages` does.

    It takes `PROBE_SECONDS` at most for each of the two.
    """
    async with ServerPages(servers, context, api_key, PROBE_SECONDS) as pages:
        keyed = bool(api_key)
        return await asyncio.gather(*(_probe(pages, each, keyed=keyed) for each in addresses))


async def _probe(pages: ServerPages, address: Address, *, keyed: bool) -> Probe:
    try:
        status, body = await pages.get(address, "/v1/models", MAX_MODELS_BYTES)
        page, _ = await pages.get(address, "/metrics", MAX_METRICS_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return Probe(address=address, problem=problem_of(error, PROBE_SECONDS))
    wants_key = status in _REFUSED
    problem = ""
    if wants_key or page in _REFUSED:
        problem = _key_problem(page, keyed=keyed)
    elif page != HTTPStatus.OK:
        hint = "; for SGLang, set --enable-metrics" if page == HTTPStatus.NOT_FOUND else ""
        problem = f"has no metrics page (HTTP status {page}), so its load is unknown{hint}"
    return Probe(address=address, models=_models(body), problem=problem, wants_key=wants_key)


def _key_problem(page: int, *, keyed: bool) -> str:
    """Return what a server that refuses pages needs; `keyed`: it was asked with an API key."""
    if keyed:
        return "refuses the API key of --upstream-api-key-env"
    if page in _REFUSED:
        return "requires an API key for its metrics page too: set --upstream-api-key-env"
    return "requires an API key: the client's, or one from --upstream-api-key-env"


def _models(body: bytes) -> tuple[str, ...]:
    """Return the ids in OpenAI's list of models; none for anything else."""
    try:
        listed: Any = msgspec.json.decode(body)
        return tuple(str(model["id"]) for model in listed["data"])
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError, RecursionError):
        return ()
