"""vLLM v1's KV block pool (`vllm/v1/core/block_pool.py` and `kv_cache_manager.py`, 0.32).

A pool decides what an engine's prefix cache still holds when the next request comes. Each block
has a reference count: how many requests hold it. A block without references is free: it keeps its
content, and can be hit, until its space is needed for something else. Free blocks are evicted in
the order of the *free queue*, a doubly linked list (vLLM `FreeKVCacheBlockQueue`):

    head: evicted next                                      tail: evicted last
    ┌────┐     ┌────┐     ┌────┐     ┌────┐     ┌────┐     ┌────┐
    │ A3 │ ⇄  │ A2 │ ⇄  │ A1 │ ⇄  │ B3 │ ⇄  │ B2 │ ⇄  │ B1 │
    └────┘     └────┘     └────┘     └────┘     └────┘     └────┘

- *Allocate.* A prompt hits the longest run of its blocks that are cached, from the start on. The
  hits are touched; the rest of its blocks is allocated and can be hit at once, before it is
  computed (`cache_full_blocks`). A prompt that does not fit holds nothing, and waits.
- *Touch.* A block that is hit gets one more reference. If it was free, it leaves the queue, from
  whatever place in the middle it had: hence the double links.
- *Free.* A request that ends drops its references, last block first. Each block that is now free
  is appended to the tail. So the end of a prompt is evicted before its start, without which it
  would be useless; in the picture A ended before B. The order is that of the last releases, not of
  the last hits.
- *Evict.* Space is taken from the head, and only when it is allocated for something else. Space
  without content is taken first: in vLLM such blocks are at the head of the queue, here they are
  only counted in tokens, as they are all alike.

Blocks that two requests compute at the same time are held twice: equal blocks are not merged, and a
hit takes the one that was cached first.

`pool.py` and `free_queue.py` are the reference, with an object for each block; they are slow, and
run if nothing is compiled. Otherwise `native/` runs: the same rules over C arrays
(docs/adr/0013-compiled.md).
"""
