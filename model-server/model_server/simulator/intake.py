"""From request bodies to the scheduler's requests: models, prompts, limits. Knows no HTTP."""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from model_server.simulator.bodies import (
    ChatBody,
    Common,
    CompletionBody,
    Generation,
    Item,
    Message,
    Part,
    ResponsesBody,
    StreamOptions,
    TokenizeBody,
)
from model_server.simulator.errors import ApiError, UnknownModel
from model_server.simulator.prose import Writer
from model_server.simulator.response_store import ResponseStore
from model_server.simulator.scheduler import Request, Token
from model_server.simulator.settings import Settings
from model_server.simulator.template import Turn, render
from model_server.simulator.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class _Target:
    """The adapter, with its path, and the cache salt that a prompt runs under."""

    model: str
    lora: str | None
    salt: str | None
    path: str | None = None


class Intake:
    """Checks what clients send and builds requests; every refusal is an ApiError."""

    def __init__(self, settings: Settings, adapters: Mapping[str, str]) -> None:
        """`adapters` are the paths of those served by name, looked at anew for every request."""
        self.settings = settings
        self._adapters = adapters
        self.context_len = settings.limits.context_len
        self.stored = ResponseStore(enabled=settings.responses_store)
        self._tokenizer = Tokenizer()
        self._writer = Writer(self._tokenizer, settings.output_tokens)

    def chat(self, body: ChatBody) -> list[Request]:
        """Build the request of a chat."""
        _check_stream_options(body)
        if body.tools == []:
            raise ApiError("`tools` must not be an empty array.", "tools")
        ids = self._conversation(body.messages, body.tools, generate=body.add_generation_prompt)
        return self.generation(body, [ids])

    def responses(self, body: ResponsesBody) -> list[Request]:
        """Build the request of a Responses API call."""
        turns = self.response_turns(body)
        return self.generation(body, [render(self._tokenizer, turns, generate=True)])

    def response_turns(self, body: ResponsesBody) -> list[Turn]:
        """Return the conversation that a response is to, with the stored part of it."""
        turns = _preamble(body.tools)
        if body.instructions:
            turns.append(Turn("system", body.instructions))
        turns += self.stored.turns(body.previous_response_id)
        if isinstance(body.input, str):
            return [*turns, Turn("user", body.input)]
        return turns + [_item_turn(item) for item in body.input]

    def completion(self, body: CompletionBody) -> list[Request]:
        """Build the requests of a completion."""
        _check_stream_options(body)
        return self.generation(body, self.prompts(body.prompt))

    def generation(self, body: Generation, prompts: "Sequence[array[int]]") -> list[Request]:
        """One request for each prompt."""
        if body.n not in (1, None):
            raise ApiError("This server generates one choice a prompt: n must be 1", "n")
        target = self._target(body)
        return [self._generate(body, target, ids) for ids in prompts]

    def pooling(self, body: Common, prompts: "Sequence[array[int]]") -> list[Request]:
        """One request without output for each prompt."""
        target = self._target(body)
        for ids in prompts:
            self._check_length(ids, wanted=0)
        return [self._request(target, ids, 0, iter(())) for ids in prompts]

    def prompts(self, given: str | list[Any]) -> "list[array[int]]":
        """Token ids of each prompt in text, ids, or a list of either."""
        if isinstance(given, str):
            return [self._tokenizer.encode(given)]
        if not given:
            raise ApiError("Please provide at least one prompt", "prompt")
        if isinstance(given[0], int):
            return [_ids(given)]
        return [
            self._tokenizer.encode(prompt) if isinstance(prompt, str) else _ids(prompt)
            for prompt in given
        ]

    def tokenize(self, body: TokenizeBody) -> "array[int]":
        """Token ids of a prompt or chat."""
        if body.messages is not None:
            generate = body.add_generation_prompt
            return self._conversation(body.messages, body.tools, generate=generate)
        if body.prompt is None:
            raise ApiError("either prompt or messages must be given")
        return self._tokenizer.encode(body.prompt)

    def model_name(self, body: Common) -> str:
        """Name the model to report back: what was asked for, or the base model."""
        return body.model or self.settings.served_model_name

    def _target(self, body: Common) -> _Target:
        model = self.model_name(body)
        if body.cache_salt == "":
            raise ApiError("Parameter 'cache_salt' must be a non-empty string if provided.")
        if model == self.settings.served_model_name:
            return _Target(model, None, body.cache_salt)
        if model in self._adapters:
            return _Target(model, model, body.cache_salt, self._adapters[model])
        raise UnknownModel(f"The model `{model}` does not exist.", "model")

    def _generate(self, body: Generation, target: _Target, ids: "array[int]") -> Request:
        wanted = body.limit
        if wanted is not None and wanted < 1:
            raise ApiError(f"max_tokens must be at least 1, got {wanted}.", "max_tokens")
        self._check_length(ids, wanted=1 if wanted is None else wanted)
        most = wanted or self.context_len - len(ids)
        _check_min_tokens(body.min_tokens, most)
        seed = blake2b(repr((self.settings.seed, body.seed, target.lora)).encode())
        seed.update(ids.tobytes())
        text = self._writer.write(seed.digest(), endless=body.ignore_eos, at_least=body.min_tokens)
        return self._request(target, ids, most, text)

    def _request(
        self, target: _Target, ids: "array[int]", most: int, text: Iterator[Token]
    ) -> Request:
        return Request(ids, most, text, target.lora, target.salt, target.path)

    def _check_length(self, ids: "array[int]", wanted: int) -> None:
        if not ids:
            raise ApiError("The decoder prompt cannot be empty", "prompt")
        if len(ids) + wanted > self.context_len:
            raise ApiError(
                f"This model's maximum context length is {self.context_len} tokens. However, your "
                f"request has {len(ids)} input tokens and asks for {wanted} output tokens. "
                "Please reduce the length of either one.",
                "input_tokens",
            )

    def _conversation(
        self, messages: Iterable[Message], tools: list[Any] | None, *, generate: bool
    ) -> "array[int]":
        turns = _preamble(tools) + [_message_turn(message) for message in messages]
        if not turns:
            raise ApiError("messages must not be empty", "messages")
        return render(self._tokenizer, turns, generate=generate)


def _check_stream_options(body: Generation) -> None:
    if body.stream_options not in (None, StreamOptions()) and not body.stream:
        raise ApiError("Stream options can only be defined when `stream=True`.", "stream_options")


def _check_min_tokens(least: int, most: int) -> None:
    if least < 0:
        raise ApiError(f"min_tokens must be greater than or equal to 0, got {least}.")
    if least > most:
        raise ApiError(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")


def _preamble(tools: list[Any] | None) -> list[Turn]:
    return [Turn("system", msgspec.json.encode(tools).decode())] if tools else []


def _message_turn(message: Message) -> Turn:
    text = _text(message.content)
    if message.tool_calls:
        text += msgspec.json.encode(message.tool_calls).decode()
    return Turn(message.role, text)


def _item_turn(item: Item) -> Turn:
    if item.type == "function_call":
        return Turn("assistant", item.arguments or "")
    if item.type == "function_call_output":
        return Turn("tool", item.output or "")
    return Turn(item.role, _text(item.content))


def _text(content: str | list[Part] | None) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    strange = next((part.type for part in content if part.text is None), None)
    if strange is not None:
        raise ApiError(f"This model takes text only, not {strange}", "messages")
    return "".join(part.text or "" for part in content)


def _ids(given: object) -> "array[int]":
    if not isinstance(given, list):
        raise ApiError("a prompt is a string or a list of token ids", "prompt")
    try:
        return array("I", given)
    except (TypeError, OverflowError) as error:
        raise ApiError(f"not a list of token ids: {error}", "prompt") from error
