"""Tokenizes in this process: short or cached texts at once, long ones in a thread."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec
from cachetools import LRUCache

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.local.model_folder import ModelFolder
from epp.adapters.tokens.local.plan import PromptPlan, complete, pieces_of, plan
from epp.adapters.tokens.local.token_cache import TokenCache
from epp.adapters.tokens.prompt_tokenizer import PromptTokenizer
from epp.model.request import InferenceRequest, Prompt, RequestId

T = TypeVar("T")

_THREADS, _LONG_THREADS = 2, 1
"""Threads that encode; the library releases the GIL. Long texts have their own: a few of them take
as many seconds as they have MB.
"""
_MAX_PLANS = 256
"""Plans kept from `ready` for `tokenize`; a request without one is planned again."""


class LocalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of work on the event loop and in threads.

    Requests with a body of more than `most_bytes` bytes are not tokenized, and none while that much
    waits for threads; bodies of more than `at_once_bytes` bytes, or `at_once_items` values, are
    parsed in a thread. Up to `at_once_chars` characters of text that is not cached are encoded on
    the event loop. The cache has `cache_bytes` bytes. A request waits at most `patience` seconds;
    token ids that come later are cached for the next one.
    """

    most_bytes: int = 4 << 20
    cache_bytes: int = 64 << 20
    at_once_bytes: int = 256 << 10
    at_once_items: int = 10_000
    at_once_chars: int = 1024
    patience: float = 2.0


class Threads:
    """Threads, and a queue of work that takes no more once `most` bytes or characters are in it."""

    def __init__(self, count: int, most: int) -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix="tokens")
        self._most = most
        self._queued = 0

    def run(self, size: int, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Start work on this many bytes or characters. Raises `TextFallback` if too much waits."""
        if self._queued >= self._most:
            raise TextFallback(FallbackCause.SLOW, f"{self._queued} bytes are waiting already")
        self._queued += size
        done = asyncio.get_running_loop().run_in_executor(self._executor, work)
        done.add_done_callback(partial(self._ended, size))
        return done

    def _ended(self, size: int, _: "asyncio.Future[T]") -> None:
        self._queued -= size

    def close(self) -> None:
        """Start no more work; threads end after what they are at."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class LocalTokenizer(PromptTokenizer):
    """Tokenizes with a `ModelFolder`. Everything but the encoding runs on the event loop."""

    def __init__(self, folder: ModelFolder, limits: LocalLimits) -> None:
        super().__init__()
        self._folder = folder
        self._limits = limits
        self._cache = TokenCache(limits.cache_bytes)
        self._short = Threads(_THREADS, limits.most_bytes)
        self._long = Threads(_LONG_THREADS, limits.most_bytes)
        self._plans: LRUCache[RequestId, PromptPlan] = LRUCache(_MAX_PLANS)
        self._encoding: dict[str, asyncio.Future[dict[str, bytes]]] = {}

    def _at_once(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return the prompts if little of them is not cached."""
        limits, size = self._limits, len(request.body)
        if not size:
            raise TextFallback(FallbackCause.BODY)
        if size > limits.most_bytes:
            raise TextFallback(FallbackCause.LARGE, f"{limits.most_bytes} bytes")
        if size > limits.at_once_bytes or request.body.count(b",") > limits.at_once_items:
            return None
        drafts = plan(request, self._folder)
        known, new = self._look_up(pieces_of(drafts))
        if sum(map(len, new)) > limits.at_once_chars:
            self._plans[request.id] = drafts
            return None
        if new:
            known |= self._store(self._folder.vocabulary.encode(new))
        return complete(drafts, known)

    async def _tokenized(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        try:
            async with asyncio.timeout(self._limits.patience):
                return await self._tokenize_in_thread(request)
        except TimeoutError as error:
            patience = f"{self._limits.patience:g} s"
            raise TextFallback(FallbackCause.SLOW, patience) from error

    async def _tokenize_in_thread(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        drafts = self._plans.pop(request.id, None)
        if drafts is None:
            work = partial(plan, request, self._folder)
            drafts = await asyncio.shield(self._long.run(len(request.body), work))
        known, new = self._look_up(pieces_of(drafts))
        for encoded in await self._encode(new):
            known |= encoded
        return complete(drafts, known)

    def _look_up(self, pieces: Iterable[str]) -> tuple[dict[str, bytes], list[str]]:
        """Return the cached pieces with their ids, and the other pieces, each once."""
        found = {piece: self._cache.get(piece) for piece in dict.fromkeys(pieces)}
        known = {piece: ids for piece, ids in found.items() if ids is not None}
        return known, [piece for piece, ids in found.items() if ids is None]

    def _store(self, encoded: dict[str, bytes]) -> dict[str, bytes]:
        for piece, ids in encoded.items():
            self._cache.put(piece, ids)
        return encoded

    async def _encode(self, pieces: Sequence[str]) -> list[dict[str, bytes]]:
        """Return the ids of pieces; encode in a thread those that nothing waits for."""
        encoding, own = self._encoding, None
        new = [piece for piece in pieces if piece not in encoding]
        if new:
            size = sum(map(len, new))
            threads = self._long if size > self._limits.at_once_bytes else self._short
            own = threads.run(size, partial(self._folder.vocabulary.encode, new))
            encoding |= dict.fromkeys(new, own)
            own.add_done_callback(partial(self._on_encoded, new))
        jobs = {encoding[piece] for piece in pieces}
        try:
            return await asyncio.gather(*map(asyncio.shield, jobs))
        except TextFallback:
            if own is not None and own.done() and own.exception() is not None:
                raise
            return await self._encode(pieces)  # another request's pieces were at fault

    def _on_encoded(self, pieces: Sequence[str], work: "asyncio.Future[dict[str, bytes]]") -> None:
        for piece in pieces:
            del self._encoding[piece]
        if not work.cancelled() and work.exception() is None:
            self._store(work.result())

    async def close(self) -> None:
        """Start no more work; threads end after what they are encoding."""
        self._short.close()
        self._long.close()
