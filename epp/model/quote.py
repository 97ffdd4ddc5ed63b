"""A quote: one request as hashes and lengths of its prompts, and its cost at each endpoint.

`Fleet.quote` makes it once; each `Fleet.candidates` looks it up in the caches as they are then. A
request that is held keeps it for minutes; a replica that shares the hasher's secret takes it over.
It has no text.
"""

from typing import Final

from mypy_extensions import mypyc_attr

from epp.model.learning.output_lengths import ResponseKind
from epp.model.learning.prefill import Speed
from epp.model.prefix_index.index import PrefixIndex, Slot
from epp.model.prompts.chain import Chain
from epp.model.prompts.text_lengths import Kind
from epp.model.prompts.token_offsets import TokenOffsets
from epp.model.request import Api, InferenceRequest

_MIN_SHARE: Final = 0.5
_MAX_SHARE: Final = 0.9
"""Bounds of the least length of a text, as a share of its estimated length."""
_EMBEDDING: Final = (Api.EMBEDDINGS, Api.GRPC_EMBED)
_UNSEEN: Final = (
    *(Api.CHAT, Api.COMPLETIONS, Api.RESPONSES, Api.MESSAGES, Api.GENERATE, Api.SGLANG_GENERATE),
    *(Api.GRPC_GENERATE, Api.VERTEX_CHAT, Api.VERTEX_RAW, Api.RAW_PREDICT),
)
"""APIs that generate even if no prompt is known: the body was not shown, or is odd."""


@mypyc_attr(free_list_len=1, acyclic=True)
class Estimate:
    """The part of a request's prompts that one cache is predicted to save.

    `cached` tokens in `matched` blocks are served from the cache; the prefill of the other tokens
    takes `seconds`.
    """

    def __init__(self, cached: int, matched: int, seconds: float) -> None:
        self.cached: Final = cached
        self.matched: Final = matched
        self.seconds: Final = seconds


_NOTHING_FOUND: Final[list[list[int]]] = []
_NO_ESTIMATES: Final[dict[Speed, dict[object, Estimate]]] = {}
"""The estimates of a quote before any is asked for; never changed."""


@mypyc_attr(free_list_len=1, acyclic=True)
class Quote:
    """One request, to be estimated and admitted; holds no text and no reference to the request.

    The first seven fields are the request's. What `look_up` found is valid for one state of one
    index; nothing else changes.
    """

    def __init__(
        self,
        request: InferenceRequest,
        chains: tuple[Chain, ...],
        token_offsets: tuple[TokenOffsets, ...],
        kind: Kind = "prose",
    ) -> None:
        self.request_id: Final = request.id
        self.target_model: Final = request.target_model
        self.api: Final = request.api
        self.stream: Final = request.stream
        self.max_tokens: Final = request.max_tokens
        self.subset: Final = request.subset
        self.skip_reading_prefix_cache: Final = request.skip_reading_prefix_cache
        self.chains: Final = chains
        """The blocks of its prompts."""
        self.token_offsets: Final = token_offsets
        """The lengths of its prompts, as estimated when the quote was made."""
        self.kind: Final[Kind] = kind
        """The kind of text of a single prompt."""
        tokens = blocks = 0  # a call of `sum` costs compiled code more than the loop
        for offsets in token_offsets:
            tokens += offsets.total
        for chain in chains:
            blocks += len(chain.hashes)
        self.answers: Final = request.n * len(chains)
        """How many answers all prompts together get."""
        self.tokens: Final = tokens
        """How many tokens all prompts have."""
        self.blocks: Final = blocks
        """How many full blocks all prompts have."""
        self._found = _NOTHING_FOUND
        self._estimates = _NO_ESTIMATES
        self._index: PrefixIndex | None = None
        self._version = 0

    @property
    def response_kind(self) -> ResponseKind:
        """The kind of its response, by which lengths are learned."""
        return self.target_model, self.stream

    @property
    def output_limit(self) -> int | None:
        """The most tokens that it generates: 1 if it has no output, None without a limit."""
        if self.api in _EMBEDDING or not (self.chains or self.api in _UNSEEN):
            return 1
        return self.max_tokens

    def look_up(self, index: PrefixIndex, version: int) -> None:
        """Look the prompts up in an index, once for each `version` of its owner's state."""
        if self._index is index and self._version == version:
            return
        found: list[list[int]] = []
        for chain in self.chains:
            hashes = chain.hashes
            looked_up = hashes if chain.lookup == len(hashes) else hashes[: chain.lookup]
            found.append(index.match(looked_up))
        self._found = found
        self._index, self._version = index, version
        self._estimates = _NO_ESTIMATES

    def least_context(self, error: float) -> int:
        """Return the least number of tokens that the longest prompt has with its output.

        An estimated length is reduced by twice its `error`, which is a share of it: by at least a
        tenth, and by at most half of the length. If the client sets no limit, no output counts.
        """
        share = min(_MAX_SHARE, max(_MIN_SHARE, 1.0 - 2.0 * error))
        lengths = [each.known + (each.total - each.known) * share for each in self.token_offsets]
        return int(max(lengths, default=0.0)) + (self.max_tokens or 0)

    def drop_lookup(self) -> None:
        """Free what `look_up` found: one number for each prompt and endpoint."""
        self._found, self._index, self._estimates = _NOTHING_FOUND, None, _NO_ESTIMATES

    def estimate(self, slot: Slot, speed: Speed) -> Estimate:
        """Predict the tokens that the cache of a slot saves; `look_up` comes first."""
        return self._predict([each[slot] for each in self._found], speed)

    def estimates(self, places: list[tuple[Slot, Speed]]) -> list[Estimate]:
        """Predict what each of several caches saves; `look_up` comes first.

        Endpoints of the same speed that hold equally many of the blocks share one estimate.
        """
        if self._estimates is _NO_ESTIMATES:
            self._estimates = {}
        found, known = self._found, self._estimates
        if len(found) != 1:
            return [
                self._of_several([each[slot] for each in found], speed) for slot, speed in places
            ]
        depths = found[0]
        estimates: list[Estimate] = []
        last: Speed | None = None
        by_depth: dict[object, Estimate] = {}
        estimate: Estimate | None = None
        before = -1  # the depth that `estimate` is for
        for slot, speed in places:
            depth = depths[slot]
            if speed is not last:
                last, before = speed, -1
                of_speed = known.get(speed)
                if of_speed is None:
                    of_speed = known[speed] = {}
                by_depth = of_speed
            if depth != before or estimate is None:
                before, estimate = depth, by_depth.get(depth)
                if estimate is None:
                    estimate = by_depth[depth] = self._predict([depth], speed)
            estimates.append(estimate)
        return estimates

    def _of_several(self, depths: list[int], speed: Speed) -> Estimate:
        by_depth, key = self._estimates.setdefault(speed, {}), tuple(depths)
        known = by_depth.get(key)
        if known is None:
            known = by_depth[key] = self._predict(depths, speed)
        return known

    def discounted(self, estimate: Estimate, cached: int, speed: Speed) -> Estimate:
        """Return an estimate with its prediction reduced to `cached` tokens."""
        seconds = speed.prefill.seconds(self.tokens - cached, cached)
        return Estimate(cached, estimate.matched, seconds)

    def _predict(self, depths: list[int], speed: Speed) -> Estimate:
        if not self.tokens:
            return Estimate(0, 0, 0.0)
        unit, cached, matched = speed.unit, 0, 0
        for position, depth in enumerate(depths):
            matched += depth
            offsets = self.token_offsets[position]
            if depth and unit:
                # vLLM v1/core/kv_cache_manager.py get_computed_blocks: hits are whole blocks, and
                # the last token of a prompt is always computed.
                cached += min(offsets.covered(depth), offsets.total - 1) // unit * unit
        return Estimate(cached, matched, speed.prefill.seconds(self.tokens - cached, cached))
