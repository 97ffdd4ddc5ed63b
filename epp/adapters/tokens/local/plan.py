"""Plans the tokenization of a request: its prompts as pieces of text to be encoded.

Mirrors vLLM 0.32 `ChatCompletionRequest` and `CompletionRequest` (`build_tok_params`):
`add_special_tokens` is true by default for completions only.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import msgspec

from epp.adapters.tokens.anthropic_chat import chat_of
from epp.adapters.tokens.fallback import (
    FallbackCause,
    TextFallback,
    fields_of,
    without_changed_tokens,
)
from epp.adapters.tokens.local.model_folder import ModelFolder
from epp.model.request import TOKEN_BYTES, Api, InferenceRequest, Prompt

MAX_PIECES = 10_000
"""Pieces of all prompts, each of which is looked up on the event loop: 20 ms of work.

A message has two or three.
"""


class PromptDraft(msgspec.Struct, frozen=True):
    """A prompt to be encoded: the ids of its pieces, between the ids `before` and `after`.

    `ends` are the special tokens that close a message.
    """

    pieces: Sequence[str]
    before: bytes = b""
    after: bytes = b""
    ends: frozenset[str] = frozenset()

    def complete(self, ids: Mapping[str, bytes]) -> Prompt:
        """Return the prompt; it has a mark after each token that closes a message."""
        parts = [ids[piece] for piece in self.pieces]
        data = b"".join((self.before, *parts, self.after))
        if not self.ends:
            return Prompt(data, exact=True)
        starts = accumulate(map(len, parts), initial=len(self.before))
        ends = tuple(self.ends)
        marks = [
            start // TOKEN_BYTES + 1
            for start, piece in zip(starts, self.pieces, strict=False)
            if piece.startswith(ends)
        ]
        return Prompt(data, exact=True, marks=marks)


PromptPlan = Sequence[PromptDraft | Prompt]
"""A request's prompts in order; those that were sent as token ids are complete."""


def pieces_of(plan: PromptPlan) -> Iterable[str]:
    """Yield the pieces of all prompts."""
    return chain.from_iterable(each.pieces for each in plan if isinstance(each, PromptDraft))


def complete(plan: PromptPlan, ids: Mapping[str, bytes]) -> tuple[Prompt, ...]:
    """Return the prompts, given the ids of their pieces."""
    return tuple([each.complete(ids) if isinstance(each, PromptDraft) else each for each in plan])


def plan(request: InferenceRequest, folder: ModelFolder) -> PromptPlan:
    """Return the plan of a request. Raises `TextFallback` if it cannot be tokenized."""
    drafts = _DRAFTS.get(request.api)
    if drafts is None:
        raise TextFallback(FallbackCause.API, request.api.value)
    body = fields_of(request.body)
    without_changed_tokens(body, "chat_template")
    made = drafts(body, request, folder)
    if sum(len(each.pieces) for each in made if isinstance(each, PromptDraft)) > MAX_PIECES:
        raise TextFallback(FallbackCause.LARGE, f"{MAX_PIECES} pieces")
    return made


def _chat(body: Mapping[str, Any], _: InferenceRequest, folder: ModelFolder) -> PromptPlan:
    if body.get("tools") == []:
        raise TextFallback(FallbackCause.MALFORMED, "`tools` is empty")
    return _rendered(body, folder)


def _rendered(body: Mapping[str, Any], folder: ModelFolder) -> PromptPlan:
    if folder.template is None:
        raise TextFallback(FallbackCause.TEMPLATE, folder.missing)
    text = folder.template.render(body)
    return [_draft(text, folder, special=bool(body.get("add_special_tokens")))]


def _messages(body: Mapping[str, Any], _: InferenceRequest, folder: ModelFolder) -> PromptPlan:
    return _rendered(chat_of(body, folder.messages), folder)  # with empty `tools`, if there are


def _completions(
    body: Mapping[str, Any], request: InferenceRequest, folder: ModelFolder
) -> PromptPlan:
    prompt = body.get("prompt")
    items = prompt if isinstance(prompt, list) else [prompt]
    special = bool(body.get("add_special_tokens", True))
    if len(items) != len(request.prompts):
        raise TextFallback(FallbackCause.MALFORMED, "a prompt is neither text nor token ids")
    return [
        _draft(item, folder, special=special) if isinstance(item, str) else sent
        for item, sent in zip(items, request.prompts, strict=True)
    ]


def _draft(text: str, folder: ModelFolder, *, special: bool) -> PromptDraft:
    vocabulary = folder.vocabulary
    pieces = vocabulary.pieces(text)
    if not special:
        return PromptDraft(pieces, ends=folder.ends)
    if vocabulary.affixes is None:
        raise TextFallback(FallbackCause.FIELD, "add_special_tokens")
    return PromptDraft(pieces, *vocabulary.affixes, ends=folder.ends)


_DRAFTS: dict[Api, Callable[[Mapping[str, Any], InferenceRequest, ModelFolder], PromptPlan]] = {
    Api.CHAT: _chat,
    Api.COMPLETIONS: _completions,
    Api.MESSAGES: _messages,
}
