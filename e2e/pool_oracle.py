"""vLLM's own KV cache manager, driven as its scheduler drives it; runs no model.

Private parts of vLLM are used as of 0.32 (`vllm/v1/core/kv_cache_manager.py`).
"""

import os
import warnings

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # not ours to mend
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

HASH = get_hash_fn_by_name("sha256")
init_none_hash(HASH)
SAMPLING = SamplingParams(max_tokens=1 << 16)


class Engine:
    """`blocks` usable blocks of `block` tokens; requests go by the names that callers give them.

    With `eagle` its draft model is of a kind for which the last block of each hit is dropped.
    """

    def __init__(self, blocks: int, block: int, *, eagle: bool = False) -> None:
        spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float16)
        config = KVCacheConfig(
            num_blocks=blocks + 1,  # the null block
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
        )
        self._manager = KVCacheManager(
            config,
            max_model_len=1 << 20,
            scheduler_block_size=block,
            hash_block_size=block,
            enable_caching=True,
            use_eagle=eagle,
        )
        self._hasher = get_request_block_hasher(block, HASH)

    @property
    def free(self) -> int:
        """Blocks that could be allocated now."""
        free: int = self._manager.block_pool.get_num_free_blocks()
        return free

    @property
    def findable(self) -> int:
        """Different blocks that can be hit."""
        return len(self._manager.block_pool.cached_block_hash_to_block)

    @property
    def cached(self) -> int:
        """Blocks with content, copies counted."""
        return sum(1 for block in self._manager.block_pool.blocks if block.block_hash is not None)

    def hits(self, tokens) -> int:
        """Tokens of a prompt that would hit now."""
        hit: int = self._manager.get_computed_blocks(self._request("ask", tokens))[1]
        return hit

    def begin(self, name: str, tokens) -> Request:
        """Return a request that holds nothing yet."""
        return self._request(name, tokens)

    def admit(self, request: Request) -> int | None:
        """Let a request in, new or preempted, and return the tokens that hit; None: no space."""
        hit: int
        blocks, hit, _ = self._manager.get_computed_blocks(request)
        new = request.num_tokens - hit
        if not self._manager.allocate_slots(request, new, hit, blocks, full_sequence_must_fit=True):
            return None
        request.num_computed_tokens = request.num_tokens
        return hit

    def decode(self, request: Request, token: int) -> bool:
        """Sample a token, and compute it: False where there is no block for it."""
        if request.num_tokens == request.num_computed_tokens:
            request.append_output_token_ids(token)
        if self._manager.allocate_slots(request, 1) is None:
            return False
        request.num_computed_tokens += 1
        return True

    def free_up(self, request: Request) -> None:
        """The request is over, was aborted or preempted."""
        self._manager.free(request)
        request.num_computed_tokens = 0

    def _request(self, name: str, tokens) -> Request:
        return Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=SAMPLING,
            pooling_params=None,
            block_hasher=self._hasher,
            cache_salt=None,
            lora_request=None,
        )
