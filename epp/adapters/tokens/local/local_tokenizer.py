"""Tokens made in process: what is known or short at once, what is long in a thread."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec
from cachetools import LRUCache

from epp.adapters.tokens.fallback import FallbackCause, FallbackCounts, TextFallback
from epp.adapters.tokens.local.model_folder import ModelFolder
from epp.adapters.tokens.local.plan import PromptPlan, finished, pieces_of, plan
from epp.adapters.tokens.local.segments import TokenCache
from epp.model.request import InferenceRequest, Prompt, RequestId

_THREADS = 2
_BEGUN = 256


class LocalLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What may be done where. Sizes in bytes of the body, lengths in characters.

    Bodies beyond `most_bytes` stay text; those beyond `at_once_bytes` are read in a thread.
    Up to `at_once_chars` of text that is not cached is tokenized at once. `patience` (seconds)
    is what a request waits for tokens; they are kept for the next one when they come later.
    """

    most_bytes: int = 4 << 20
    cache_bytes: int = 128 << 20
    at_once_bytes: int = 256 << 10
    at_once_chars: int = 1024
    patience: float = 2.0


class LocalTokenizer:
    """Tokenizes with a `ModelFolder`. Everything but the encoding runs on the event loop."""

    def __init__(self, folder: ModelFolder, limits: LocalLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._segments = TokenCache(limits.cache_bytes)
        self._regrets = FallbackCounts()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tokens")
        self._begun: LRUCache[RequestId, PromptPlan] = LRUCache(_BEGUN)
        self._under_way: dict[str, asyncio.Future[dict[str, bytes]]] = {}

    @property
    def counts(self) -> Mapping[FallbackCause, int]:
        """Requests that were left as text, by cause."""
        return self._regrets.counts

    def ready(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        """Return the prompts if little of them is new; None: ask `tokenize`, once."""
        if all(prompt.exact for prompt in request.prompts):
            return request.prompts
        try:
            return self._at_once(request)
        except TextFallback as reason:
            self._regrets.note(reason)
            return request.prompts

    def _at_once(self, request: InferenceRequest) -> tuple[Prompt, ...] | None:
        size = len(request.body)
        if not size:
            raise TextFallback(FallbackCause.BODY)
        if size > self._limits.most_bytes:
            raise TextFallback(FallbackCause.LARGE, f"{self._limits.most_bytes} bytes")
        if size > self._limits.at_once_bytes:
            return None
        drafts = plan(request, self._folder)
        known, new = self._look_up(pieces_of(drafts))
        if sum(map(len, new)) > self._limits.at_once_chars:
            self._begun[request.id] = drafts
            return None
        if new:
            known |= self._keep(self._folder.vocabulary.encode(new))
        return finished(drafts, known)

    async def tokenize(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        """Return the prompts, or those of text where there is a reason."""
        try:
            async with asyncio.timeout(self._limits.patience):
                return await self._in_time(request)
        except TimeoutError:
            self._regrets.note(TextFallback(FallbackCause.SLOW, f"{self._limits.patience:g} s"))
        except TextFallback as reason:
            self._regrets.note(reason)
        return request.prompts

    async def _in_time(self, request: InferenceRequest) -> tuple[Prompt, ...]:
        drafts = self._begun.pop(request.id, None)
        if drafts is None:
            loop = asyncio.get_running_loop()
            drafts = await loop.run_in_executor(self._threads, plan, request, self._folder)
        known, new = self._look_up(pieces_of(drafts))
        for encoded in await self._encoded(new):
            known |= encoded
        return finished(drafts, known)

    def _look_up(self, pieces: Iterable[str]) -> tuple[dict[str, bytes], list[str]]:
        """Return what is cached of the pieces, and the others, each once."""
        found = {piece: self._segments.get(piece) for piece in dict.fromkeys(pieces)}
        known = {piece: ids for piece, ids in found.items() if ids is not None}
        return known, [piece for piece, ids in found.items() if ids is None]

    def _keep(self, encoded: dict[str, bytes]) -> dict[str, bytes]:
        for piece, ids in encoded.items():
            self._segments.put(piece, ids)
        return encoded

    async def _encoded(self, pieces: Sequence[str]) -> list[dict[str, bytes]]:
        """Encode in a thread what no other request is waiting for; wait for all of it."""
        under_way = self._under_way
        new = [piece for piece in pieces if piece not in under_way]
        if new:
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, self._folder.vocabulary.encode, new)
            under_way |= dict.fromkeys(new, work)
            work.add_done_callback(partial(self._landed, new))
        jobs = {under_way[piece] for piece in pieces}
        return await asyncio.gather(*map(asyncio.shield, jobs))

    def _landed(self, pieces: Sequence[str], work: "asyncio.Future[dict[str, bytes]]") -> None:
        for piece in pieces:
            del self._under_way[piece]
        if not work.cancelled() and work.exception() is None:
            self._keep(work.result())

    async def close(self) -> None:
        """Begin nothing more; what is being encoded ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)
