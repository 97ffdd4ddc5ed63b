"""Authentication and authorization of metrics readers by the API server.

Mirrors controller-runtime `pkg/metrics/filters` (llm-d-router's filter): a TokenReview, then a
SubjectAccessReview of `get` on the path. Results are cached: permissions for 60 seconds, refusals
for 10.
"""

import asyncio
import time
from hashlib import sha256
from http import HTTPStatus

from cachetools import TLRUCache

from epp.adapters.kube.api_connection import ApiConnection, ApiUnreachable
from epp.adapters.kube.kube_settings import KubeAccess
from epp.errors import ConfigError
from epp.protocol.kube.reviews import (
    ACCESS_REVIEWS,
    RULES,
    TOKEN_REVIEWS,
    access_review,
    allowed,
    token_review,
    user_of,
)
from epp.protocol.kube.watch import UNREADABLE, ApiRefused
from epp.system.logs import Log

_log = Log(__name__)

_MAX_TOKENS = 1_000
_CACHED_SECONDS = {HTTPStatus.OK: 60.0}
_REFUSED_SECONDS = 10.0
_ANSWER_SECONDS = 5.0
_MAX_ANSWER_BYTES = 1 << 20
AT_ONCE = 8
"""The most tokens that are reviewed at a time; further connections of the operators' port wait."""


class TokenReviewer:
    """Reviews bearer tokens; connects to the API server at the first review."""

    def __init__(self, access: KubeAccess) -> None:
        self._connection = ApiConnection(access)
        self._known: TLRUCache[bytes, HTTPStatus] = TLRUCache(
            _MAX_TOKENS, ttu=_until, timer=time.monotonic
        )
        self._problem = ""
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def review(self, token: str, path: str) -> HTTPStatus:
        """Return 200 if the token's user may read `path`, 403 if not, 401 for an invalid token.

        Returns 503 if there is no answer within five seconds, which include waiting for others.
        """
        if not token:
            return HTTPStatus.UNAUTHORIZED
        key = sha256(f"{path} {token}".encode()).digest()
        known = self._known.get(key)
        if known is not None:
            return known
        try:
            async with asyncio.timeout(_ANSWER_SECONDS), self._turns:
                status = await self._review(token, path)
        except (TimeoutError, ApiRefused, ApiUnreachable, ConfigError, *UNREADABLE) as error:
            self._report(error)
            return HTTPStatus.SERVICE_UNAVAILABLE
        self._problem = ""
        self._known[key] = status
        return status

    async def close(self) -> None:
        """Close the connection; reviews in flight fail."""
        await self._connection.close()

    async def _review(self, token: str, path: str) -> HTTPStatus:
        if not self._connection.host:
            await self._connection.open()
        user = user_of(await self._post(TOKEN_REVIEWS, token_review(token)))
        if user is None:
            return HTTPStatus.UNAUTHORIZED
        may = allowed(await self._post(ACCESS_REVIEWS, access_review(user, path)))
        return HTTPStatus.OK if may else HTTPStatus.FORBIDDEN

    async def _post(self, path: str, document: dict[str, object]) -> bytes:
        return await self._connection.request(
            "POST", path, document, seconds=_ANSWER_SECONDS, most_bytes=_MAX_ANSWER_BYTES
        )

    def _report(self, error: Exception) -> None:
        """Log a failure, unless it is the one logged last."""
        problem = str(error) or f"no review within {_ANSWER_SECONDS:g} s"
        if problem == self._problem:
            return
        self._problem = problem
        rules = {}
        if isinstance(error, ApiRefused) and error.code == HTTPStatus.FORBIDDEN:
            rules = {"missing_rules": ", ".join(RULES)}
        _log.warning("metrics.not_reviewed", error=problem, **rules)


def _until(_: bytes, status: HTTPStatus, now: float) -> float:
    return now + _CACHED_SECONDS.get(status, _REFUSED_SECONDS)
