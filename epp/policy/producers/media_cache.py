"""The images, videos and sounds that each endpoint has encoded before, by the prompts sent there.

In a text prompt a medium is its 16-byte digest, repeated over hundreds of bytes
(`epp.protocol.bodies.content_blocks`): a stretch of period 16.
"""

from collections.abc import Iterator
from typing import Annotated

import msgspec
from cachetools import LRUCache

from epp.model.decision import Decision
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, Event
from epp.model.request import InferenceRequest, Prompt
from epp.policy.attribute_sources import PrefixMatch
from epp.policy.effects import mapped_to
from epp.policy.plugins import Candidates, PluginContext, PluginParameters

_DEFAULT_MEBIBYTES = 4096
_ITEM_MEBIBYTES = 2
"""The size of an encoded item in an encoder's cache (llm-d-router)."""
_DIGEST, _PERIODS, _STRIDE = 16, 8, 400
"""Bytes of a digest, how often it repeats at least, and bytes from one probe to the next."""
_MAX_ITEMS = 256


class MediaCacheProducer(PluginParameters, frozen=True):
    """Remembers, for each endpoint, the media of the requests that were sent there.

    The cache has room for `cache_size_in_mb_per_server` mebibytes, two for each item; 0 or less
    stands for the default. `cache_size_in_mb` is an older name of it.
    """

    cache_size_in_mb_per_server: int = msgspec.field(
        default=_DEFAULT_MEBIBYTES, name="cacheSizeInMBPerServer"
    )
    cache_size_in_mb: Annotated[int, mapped_to("`cacheSizeInMBPerServer`")] = msgspec.field(
        default=0, name="cacheSizeInMB"
    )

    def start(self, context: PluginContext) -> "MediaCaches":
        """Return the caches, empty."""
        size = self.cache_size_in_mb or self.cache_size_in_mb_per_server
        mebibytes = size if size > 0 else _DEFAULT_MEBIBYTES
        caches = MediaCaches(max(1, mebibytes // _ITEM_MEBIBYTES))
        context.subscribe((EndpointUpserted, EndpointRemoved), caches.follow)
        return caches


class MediaCaches:
    """One LRU of media for each endpoint, of `items` items.

    `queries` is the number of media of committed requests, `hits` those that each endpoint had
    then. `tenths` counts the shares that endpoints had of a request's media: none, up to a tenth,
    and so on; `shares` is their sum.
    """

    def __init__(self, items: int) -> None:
        self.queries = 0
        self.hits: dict[EndpointId, int] = {}
        self.tenths = [0] * 11
        self.shares = 0.0
        self._items = items
        self._caches: dict[EndpointId, LRUCache[bytes, None]] = {}

    def multimodal_matches(
        self, request: InferenceRequest, candidates: Candidates
    ) -> list[PrefixMatch]:
        """Return how many of the request's media were sent to each candidate before."""
        media = _media(request)
        none: dict[bytes, None] = {}
        return [
            PrefixMatch(
                sum(item in self._caches.get(each.endpoint.id, none) for item in media), len(media)
            )
            for each in candidates
        ]

    def committed(self, request: InferenceRequest, decision: Decision, _: float) -> None:
        """Remember a request's media at all endpoints that it may go to."""
        media = _media(request)
        if not media:
            return
        self._count(media)
        for endpoint in decision.endpoints:
            cache = self._caches.get(endpoint.id)
            if cache is not None:
                cache.update(dict.fromkeys(media))

    def _count(self, media: set[bytes]) -> None:
        items = len(media)
        self.queries += items
        for endpoint_id, cache in self._caches.items():
            matched = sum(item in cache for item in media)
            self.tenths[-(-10 * matched // items)] += 1
            self.shares += matched / items
            if matched:
                self.hits[endpoint_id] = self.hits.get(endpoint_id, 0) + matched

    def follow(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
        """Add and drop caches with their endpoints."""
        if isinstance(event, EndpointRemoved):
            self._caches.pop(event.endpoint_id, None)
            self.hits.pop(event.endpoint_id, None)
        elif isinstance(event, EndpointUpserted):
            self._caches.setdefault(event.endpoint.id, LRUCache(self._items))


def _media(request: InferenceRequest) -> set[bytes]:
    """Return names for the media of a request."""
    if not request.multimodal:
        return set()
    found: set[bytes] = set()
    for prompt in request.prompts:
        for name in _names(prompt):
            found.add(name)
            if len(found) == _MAX_ITEMS:
                return found
    return found


def _names(prompt: Prompt) -> Iterator[bytes]:
    """Yield a name for each stretch of period 16: the least rotation of the repeated bytes."""
    data, length = prompt.data, _DIGEST * (_PERIODS - 1)
    for at in range(0, len(data) - length - _DIGEST + 1, _STRIDE):
        if data[at : at + length] == data[at + _DIGEST : at + _DIGEST + length]:
            twice = data[at : at + _DIGEST] * 2
            yield min(twice[turn : turn + _DIGEST] for turn in range(_DIGEST))
