"""Plays conversations through the gateway, several at a time, and writes down what each taught."""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from itertools import islice

import aiohttp
import msgspec

from bench.accuracy.observation import Message, Observation
from bench.accuracy.workload import Reply, Session, Turn, Workload
from epp.demo.answer import Answer
from epp.errors import WarmpickError

DECISION = "x-warmpick-decision"
PATH = "/v1/chat/completions"
REQUEST_SECONDS = 60.0
_MAX_PROMPT = 3_000


class Refused(WarmpickError):
    """A request was not answered with 200: the figures would mean nothing."""


class _Decision(msgspec.Struct):
    endpoint: str
    prompt_tokens: int
    predicted_cached_tokens: int


_decision = msgspec.json.Decoder(_Decision)
_encode = msgspec.json.Encoder().encode


class Conversation:
    """A session under way: what was said, and which endpoint was asked last."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.messages: list[Message] = [{"role": "system", "content": session.system}]
        self.turn = 0
        self.endpoint = ""

    @property
    def over(self) -> bool:
        """Whether every question was asked."""
        return self.turn == len(self.session.turns)


class Player:
    """Takes the turns of a workload through one gateway.

    `model` is the name to ask for. Answers are made of the tokens `words`, where there are any.
    A conversation ends early when its prompt has more than 3,000 tokens. `idle` are the
    conversations that could go on, `seen` is what was observed.
    """

    def __init__(self, url: str, model: str, words: Sequence[int]) -> None:
        self._url = url + PATH
        self._model = model
        self._words = words
        self.seen: list[Observation] = []
        self.idle: list[Conversation] = []

    async def play(self, workload: Workload) -> list[Observation]:
        """Take all turns; what was observed, in the order of sending. Raises `Refused`."""
        shape, draw = workload.shape, random.Random(workload.seed)
        sessions = workload.sessions()
        idle = self.idle = [Conversation(each) for each in islice(sessions, shape.active)]
        left = iter(range(shape.requests))

        async def take_turns(client: aiohttp.ClientSession) -> None:
            for _ in left:
                conversation = idle.pop(draw.randrange(len(idle)))
                await self.ask(client, conversation)
                over = conversation.over
                idle.append(Conversation(next(sessions)) if over else conversation)

        async with gateway_client() as client, asyncio.TaskGroup() as group:
            for _ in range(shape.concurrency):
                group.create_task(take_turns(client))
        return sorted(self.seen, key=lambda each: each.at)

    async def ask(self, client: aiohttp.ClientSession, conversation: Conversation) -> Observation:
        """Take a conversation's next turn."""
        session, turn = conversation.session, conversation.session.turns[conversation.turn]
        await asyncio.sleep(turn.think)
        conversation.messages.append({"role": "user", "content": turn.question})
        messages = tuple(conversation.messages)
        at = time.monotonic()
        decision, answer = await self._post(client, messages, turn, noise=session.noise)
        usage = answer.usage
        seen = Observation(
            at=at,
            session=session.number,
            turn=conversation.turn,
            endpoint=decision.endpoint,
            reply=turn.reply,
            noise=session.noise,
            messages=messages,
            predicted=decision.predicted_cached_tokens,
            predicted_prompt=decision.prompt_tokens,
            prompt=usage.prompt_tokens,
            cached=usage.cached_tokens,
            generated=usage.completion_tokens or answer.chunks,
        )
        self.seen.append(seen)
        conversation.messages.append({"role": "assistant", "content": answer.text})
        conversation.turn += 1
        conversation.endpoint = decision.endpoint
        if usage.prompt_tokens > _MAX_PROMPT:
            conversation.turn = len(session.turns)
        return seen

    async def _post(
        self,
        client: aiohttp.ClientSession,
        messages: Sequence[Message],
        turn: Turn,
        *,
        noise: bool,
    ) -> tuple[_Decision, Answer]:
        body = self._body(messages, turn, noise=noise)
        answer = Answer()
        headers = {"content-type": "application/json"}
        async with client.post(self._url, data=_encode(body), headers=headers) as response:
            if response.status != 200:
                raise Refused(f"{response.status}: {(await response.text())[:300]}")
            decision = _decision.decode(response.headers[DECISION])
            if turn.reply is Reply.WHOLE:
                answer.add(await response.read())
                return decision, answer
            async for line in response.content:
                answer.feed(line)
                if turn.reply is Reply.ABORTED and answer.chunks >= turn.chunks:
                    response.close()
                    break
        return decision, answer

    def _body(
        self, messages: Sequence[Message], turn: Turn, *, noise: bool
    ) -> Mapping[str, object]:
        body: dict[str, object] = {
            "model": self._model,
            "messages": messages,
            "max_tokens": turn.tokens,
            "temperature": 1,
        }
        if turn.reply is not Reply.WHOLE:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self._words and not noise:
            body["allowed_token_ids"] = self._words
        return body


def gateway_client() -> aiohttp.ClientSession:
    """Make a client whose connections are its own and whose requests have a deadline."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
        connector=aiohttp.TCPConnector(limit=0),
    )
