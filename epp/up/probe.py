"""The first look at model servers: which models they serve, and what would keep traffic away."""

import asyncio
import os
import ssl
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
import msgspec

from epp.up.pages import MAX_METRICS_BYTES, MAX_MODELS_BYTES, ServerPages
from epp.up.servers import Address, ModelServer

PROBE_SECONDS = 3.0
_REFUSED = {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What one address answered: the names of its models, and what is wrong, for people.

    `wants_key`: it refuses requests without another API key than the one it was sent, if any.
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
        return await asyncio.gather(*(_probe(pages, each) for each in addresses))


async def _probe(pages: ServerPages, address: Address) -> Probe:
    try:
        status, body = await pages.get(address, "/v1/models", MAX_MODELS_BYTES)
        page, _ = await pages.get(address, "/metrics", MAX_METRICS_BYTES)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        return Probe(address=address, problem=f"does not answer ({_told(error)})")
    if page != HTTPStatus.OK:
        hint = "for SGLang, set --enable-metrics"
        problem = f"has no metrics page (HTTP status {page}), so its load is unknown; {hint}"
        return Probe(address=address, problem=problem, wants_key=status in _REFUSED)
    return Probe(address=address, models=_models(body), wants_key=status in _REFUSED)


def _models(body: bytes) -> tuple[str, ...]:
    """Return the ids in OpenAI's list of models; none of what is not such a list."""
    try:
        listed: Any = msgspec.json.decode(body)
        return tuple(str(model["id"]) for model in listed["data"])
    except (msgspec.DecodeError, KeyError, TypeError, UnicodeDecodeError):
        return ()


def _told(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no response within {PROBE_SECONDS:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not accepted: {error.certificate_error}"
    number = error.errno if isinstance(error, OSError) else None
    if number is not None and number > 0:  # aiohttp's own text repeats the address
        return os.strerror(number)
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error.strerror or error.os_error)
    return str(error) or type(error).__name__
