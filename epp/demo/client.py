"""The load generator: plays conversations through the gateway and times every response.

Open loop: arrivals follow the plan whatever the servers do. Within a conversation, a question
waits for the answer to the one before.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

import aiohttp
import msgspec

from epp.demo.answer import Answer
from epp.demo.figures import Sample
from epp.demo.workload import Conversation, Turn
from epp.protocol.extproc.names import DECISION

PATH = "/v1/chat/completions"
REQUEST_SECONDS = 120.0

Message = dict[str, str]
Report = Callable[[Sample], None]


class _Decision(msgspec.Struct):
    endpoint: str = ""
    predicted_cached_tokens: int | None = None


_decision = msgspec.json.Decoder(_Decision)
_encode = msgspec.json.Encoder().encode


class Player:
    """Plays conversations through one gateway and calls `report` with each finished request."""

    def __init__(self, url: str, model: str, report: Report) -> None:
        self._url = url + PATH
        self._model = model
        self._report = report
        self._started = 0.0

    async def play(self, conversations: Sequence[Conversation]) -> None:
        """Play all of them at their planned times; return when the last response is complete."""
        limit = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        connections = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=limit, connector=connections) as session:
            self._started = time.monotonic()
            async with asyncio.TaskGroup() as group:
                for conversation in conversations:
                    group.create_task(self._converse(session, conversation))

    async def _converse(self, session: aiohttp.ClientSession, conversation: Conversation) -> None:
        messages: list[Message] = [{"role": "system", "content": conversation.system}]
        for number, turn in enumerate(conversation.turns):
            await asyncio.sleep(self._started + turn.at - time.monotonic())
            messages.append({"role": "user", "content": turn.question})
            sample, text = await self._ask(session, messages, turn)
            self._report(
                msgspec.structs.replace(sample, conversation=conversation.number, turn=number)
            )
            if sample.error:
                return
            messages.append({"role": "assistant", "content": text})

    def _body(self, messages: Sequence[Message], turn: Turn) -> bytes:
        return _encode(
            {
                "model": self._model,
                "messages": messages,
                "max_tokens": turn.tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )

    async def _ask(
        self, session: aiohttp.ClientSession, messages: Sequence[Message], turn: Turn
    ) -> tuple[Sample, str]:
        """Send one question; return its sample, without its place, and the text of the answer."""
        body = self._body(messages, turn)
        sent = time.monotonic()
        answer = Answer()
        decision = _Decision()
        error = ""
        try:
            async with session.post(
                self._url, data=body, headers={"content-type": "application/json"}
            ) as response:
                decision = _decision.decode(response.headers.get(DECISION, "{}"))
                if response.status != 200:
                    error = f"{response.status} {(await response.text())[:200]}"
                async for line in response.content:
                    answer.feed(line)
        except (aiohttp.ClientError, TimeoutError, msgspec.MsgspecError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        if answer.first_at is None:
            error = error or "the answer held no text"
        sample = Sample(
            conversation=0,
            turn=0,
            sent_at=sent - self._started,
            ttft=(answer.first_at or math.nan) - sent,
            seconds=time.monotonic() - sent,
            prompt_tokens=answer.usage.prompt_tokens,
            cached_tokens=answer.usage.cached_tokens or 0,
            completion_tokens=answer.usage.completion_tokens,
            server=decision.endpoint,
            predicted_cached=decision.predicted_cached_tokens,
            error=error,
        )
        return sample, answer.text
