"""vLLM v1's KV block pool (`vllm/v1/core/block_pool.py` and `kv_cache_manager.py`, 0.32).

A pool decides what an engine's prefix cache still holds when the next request comes. Each block
has a reference count: how many requests hold it. A block that none holds is free: it keeps its
content, and can be hit, until its space is needed for something else. Which one goes first is the
order of the *free queue*, a doubly linked list of all free blocks (vLLM `FreeKVCacheBlockQueue`):

    head: evicted next                                      tail: evicted last
    ┌────┐     ┌────┐     ┌────┐     ┌────┐     ┌────┐     ┌────┐
    │ A3 │ ⇄  │ A2 │ ⇄  │ A1 │ ⇄  │ B3 │ ⇄  │ B2 │ ⇄  │ B1 │
    └────┘     └────┘     └────┘     └────┘     └────┘     └────┘

- *Allocate.* A prompt hits the longest run of its blocks that are cached, from the start on. The
  hits are touched; the rest of its blocks is allocated and can be hit at once, before it is
  computed (`cache_full_blocks`). A prompt that does not fit holds nothing, and waits.
- *Touch.* A block that is hit gets one more reference. If it was free, it leaves the queue, from
  whatever place in the middle it had: hence the double links.
- *Free.* A request that ends gives its references back, last block first. Each block that
  is free now is appended to the tail. So the end of a prompt is evicted before its start, without
  which it would be of no use; A ended before B. What counts is when a block was last released, not
  when it was last hit.
- *Evict.* Space is taken from the head, and only when it is allocated for something else. Space
  without content is taken first: in vLLM such blocks stand at the head of the queue, here they are
  a number of tokens, as one is as good as another.

What two requests compute at the same time is held twice: equal blocks are not merged, and a hit
takes the one that was cached first.

`pool.py` and `free_queue.py` are the reference: an object for each block, as slow as that is, and
what runs if nothing is compiled. With a compiler, `native/` runs in its place: the same rules
over C arrays (docs/adr/0013-compiled.md).
"""
