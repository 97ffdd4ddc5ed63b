"""Two pickers that are told the same: one as Envoy does, one as a program in the same process does.

Both have one clock, one secret, and the same chance. What they believe of three endpoints and of
every request must stay the same.
"""

import asyncio
import json
import random
import re
from functools import partial
from typing import Any
from weakref import WeakSet

import msgspec

from epp.app.core import PickerCore
from epp.app.options import ServeOptions
from epp.config.file import load
from epp.errors import RequestError
from epp.inprocess.pick import Pick, PickerContext, RawRequest
from epp.model.endpoint import Endpoint, Load, Target
from epp.model.events import LoadReported
from epp.protocol.extproc.messages import (
    BodyMode,
    Modes,
    RequestBody,
    RequestHeaders,
    ResponseBody,
    ResponseHeaders,
)
from epp.protocol.extproc.observation import Observation

ENDPOINTS = tuple(Endpoint("default", name, f"10.0.0.{at}", 8000) for at, name in enumerate("abc"))
PATHS = {"chat": "/v1/chat/completions", "ids": "/v1/completions"}
PIECE = 700
_DUPLEX = Modes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.FULL_DUPLEX_STREAMED)
_TIMED = re.compile(r"^(# \w+ )?(process_|python_|llm_d_epp_plugin_duration)", re.MULTILINE)
_TURNS = 5
"""Turns of the loop after which everything that an event leads to has happened."""


class StandingTime(asyncio.SelectorEventLoop):
    """A loop whose time is set: its timers run when they are due by that."""

    now = 100.0

    def time(self):
        """Return the time, in seconds."""
        return self.now


def play(scene):
    """Run a coroutine in a time that stands still."""
    with asyncio.Runner(loop_factory=StandingTime) as runner:
        runner.run(scene)


class Request(msgspec.Struct, frozen=True):
    """What is asked."""

    api: str
    body: bytes
    headers: dict[str, str]
    stream: bool

    @classmethod
    def of(cls, topic, length, api="chat", *, stream=False, **headers):
        """Ask about a topic at a length, streamed or not."""
        text = f"About {topic}: " + " ".join(f"{topic}{n}" for n in range(length))
        ids = [topic * 1000 + n for n in range(length)]
        said = {"messages": [{"role": "user", "content": text}]} if api == "chat" else {}
        prompt = {"prompt": ids} if api == "ids" else {}
        body = {"model": "m", "max_tokens": 20, **said, **prompt} | (
            {"stream": True} if stream else {}
        )
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls(api, json.dumps(body).encode(), named, stream)

    def answer(self, prompt_tokens, cached):
        """Return the pieces of an answer that reports these tokens."""
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 12,
            "prompt_tokens_details": {"cached_tokens": min(cached, prompt_tokens)},
        }
        if not self.stream:
            return [json.dumps({"choices": [{"text": "yes"}], "usage": usage}).encode()]
        token = b'data: {"choices":[{"text":"y"}]}\n\n'
        last = b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"
        return [token, *[token] * 40, last, b"data: [DONE]\n\n"]


class Twin:
    """One picker without its jobs: nothing is scraped, everything is told."""

    def __init__(self, clock, config="", **options):
        chosen: dict[str, Any] = {"hash_secret": b"twins", "eject_after": 3, **options}
        self.clock = clock
        self.core = PickerCore(
            ServeOptions(
                settings=load(config or "plugins: [{type: least-ttft-picker}]"),
                source=ENDPOINTS,
                observation=Observation(1),
                **chosen,
            ),
            lambda: None,
            clock=clock,
            chance=random.Random(7),  # noqa: S311 (not a secret)
            quiet=True,
        )
        self.exchange = self.core.exchanges()

    async def load(self, num_blocks):
        await self.core.discovery.load()
        said = Load(block_size=16, num_blocks=num_blocks, engine="vllm", at=self.clock())
        for each in ENDPOINTS:
            self.core.fleet.apply(LoadReported(each.id, said), self.clock())

    def held(self):
        """How many requests wait."""
        return len(self.core.director.held._pending)

    def state(self):
        """Return what it shows: its metrics, and every decision with its costs and its end."""
        page = "".join(self.core.telemetry.page())
        lines = [line for line in page.splitlines() if not _TIMED.match(line)]
        kept = [each.request_id for each in self.core.decisions.last(1024)]
        views = [view for name in kept for view in self.core.explain(name)]
        return lines + [msgspec.structs.replace(view, at="") for view in views]


class AsEnvoy(Twin):
    """Told what Envoy would tell it, in full duplex."""

    def begin(self, request):
        exchange = self.exchange(self.clock())
        head = {":method": "POST", ":path": PATHS[request.api], **request.headers}
        head |= {"content-type": "application/json"}
        pieces = [request.body[at : at + PIECE] for at in range(0, len(request.body), PIECE)]
        exchange.receive(RequestHeaders(headers=head, modes=_DUPLEX), self.clock())
        for number, piece in enumerate(pieces, 1):
            last = number == len(pieces)
            exchange.receive(RequestBody(body=piece, end_of_stream=last), self.clock())
        if exchange.pending is not None:
            exchange.pending.when_decided(partial(self.resume, exchange))
        return exchange

    def resume(self, exchange, outcome):
        exchange.resume(outcome, self.clock())

    def picked(self, exchange):
        """Return the target; the reason of a refusal; or nothing yet."""
        record = exchange.record
        if record.error is not None:
            return record.error.reason
        return "" if record.decision is None else record.decision.endpoint.target

    def head(self, exchange, status, content_type, *, end=False):
        told = {":status": str(status), "content-type": content_type}
        exchange.receive(ResponseHeaders(headers=told, end_of_stream=end), self.clock())

    def piece(self, exchange, data, *, end):
        exchange.receive(ResponseBody(body=data, end_of_stream=end), self.clock())

    def leave(self, exchange):
        """Have the client leave."""
        pending = exchange.pending
        exchange.half_closed(self.clock())
        exchange.cancelled(self.clock())
        if pending is not None:
            pending.cancel()


class InProcess(Twin):
    """Told what a program tells it."""

    def __init__(self, clock, config="", **options):
        super().__init__(clock, config, buffered_wait=float("inf"), **options)
        self.avoided = frozenset[Target]()
        url = "http://{0.target}".format
        self.context = PickerContext(
            self.core,
            lambda: None,
            self.exchange,
            clock,
            url,
            (ConnectionError,),
            WeakSet(),
        )

    def pick(self, request):
        head = {"content-type": "application/json", **request.headers}
        raw = RawRequest(request.body, head, PATHS[request.api], self.avoided)
        return Pick(raw, self.context)

    def begin(self, request):
        pick = self.pick(request)
        return pick, asyncio.create_task(pick.__aenter__())

    def picked(self, begun):
        pick, entering = begun
        if not entering.done():
            return ""
        error = entering.exception()
        if isinstance(error, RequestError):
            return error.reason
        return pick.url.removeprefix("http://").partition("/")[0]

    async def leave(self, begun):
        pick, entering = begun
        if entering.done():
            await pick.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
        else:
            entering.cancel()
            await asyncio.gather(entering, return_exceptions=True)


async def settled():
    """Let the loop take the turns that events ask for."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
