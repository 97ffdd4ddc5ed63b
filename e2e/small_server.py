"""A model server whose cache has room for one prompt of a test, and that answers when told to."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator

from aiohttp import web

from e2e.corridor import MODEL, chat
from e2e.serving import serving

NUMBER = "x-small-number"
_BLOCKS = 101
"""Of 16 tokens; vLLM keeps one of them."""
_PROMPT_WORDS = 600


class SmallServer:
    """Answers chats when they are let go; `numbers` are those that came, `x-small-number` each."""

    def __init__(self) -> None:
        self.target = ""
        self.numbers: list[int] = []
        self._running = 0
        self._let_go: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    def let_go(self, *numbers: int) -> None:
        """Have requests answered, now or when they come."""
        for number in numbers:
            self._let_go[number].set()

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """Answer a request, or a scrape."""
        if http.path == "/metrics":
            return web.Response(text=self._page())
        number = int(http.headers[NUMBER])
        await http.read()
        self.numbers.append(number)
        self._running += 1
        try:
            await self._let_go[number].wait()
        finally:
            self._running -= 1
        usage = {"prompt_tokens": _PROMPT_WORDS, "completion_tokens": 4, "total_tokens": 604}
        return web.json_response({"object": "chat.completion", "choices": [], "usage": usage})

    def _page(self) -> str:
        labels = f'block_size="16",num_gpu_blocks="{_BLOCKS}",enable_prefix_caching="True"'
        return (
            f"vllm:cache_config_info{{{labels}}} 1\n"
            f'vllm:num_requests_running{{model_name="{MODEL}"}} {self._running}\n'
            f'vllm:num_requests_waiting{{model_name="{MODEL}"}} 0\n'
            f'vllm:kv_cache_usage_perc{{model_name="{MODEL}"}} {0.6 * bool(self._running)}\n'
        )


def large(number: int) -> dict[str, object]:
    """Return a chat of which the cache of a small server holds one, and not two."""
    return chat(f"request {number}: " + f"word{number} " * _PROMPT_WORDS)


@contextlib.asynccontextmanager
async def small_server() -> AsyncIterator[SmallServer]:
    """Run one in this process, on a socket of its own."""
    server = SmallServer()
    async with serving(server.answer) as server.target:
        yield server
