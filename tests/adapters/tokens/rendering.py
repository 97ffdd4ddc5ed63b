"""A real HTTP peer that renders prompts as vLLM 0.32 does, or fails, and its clients."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

from aiohttp import web

CHAT, COMPLETIONS, RESPONSES, MESSAGES, TOKENIZE = (
    "/v1/chat/completions/render",
    "/v1/completions/render",
    "/v1/responses/render",
    "/v1/messages/render",
    "/tokenize",
)
REFUSAL = {"error": {"message": "no", "code": 404}}
NOT_FOUND = (404, {"detail": "Not Found"})
DEEP = b"[" * 50_000


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Server:
    """A server with the test's responses by path; `heard` are paths and bodies of requests.

    `authorized` are the headers of that name that came with them.
    """

    def __init__(self):
        self.answers = {}
        self.heard = []
        self.authorized = []
        self.url = ""
        self.headers = {}

    async def handle(self, request):
        body = await request.read()
        with suppress(ValueError, RecursionError):
            body = json.loads(body)
        self.heard.append((request.path, body))
        self.authorized += request.headers.getall("authorization", [])
        answer = self.answers.get(request.path, (403, {"error": "Forbidden"}))
        status, content = answer(body) if callable(answer) else answer
        if isinstance(content, asyncio.Event):
            await content.wait()
            content = {}
        if isinstance(content, bytes):
            return web.Response(status=status, body=content, headers=self.headers)
        return web.json_response(content, status=status)


@asynccontextmanager
async def serving(port=0, tls=None):
    server = Server()
    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/{path:.*}", server.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, ssl_context=tls)
    await site.start()
    server.url = f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


async def prompts_of(tokenizer, asked):
    found = tokenizer.ready(asked)
    return await tokenizer.tokenize(asked) if found is None else found


def image(url):
    return [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "what?"}]
