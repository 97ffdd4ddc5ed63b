"""The bodies of each API that are read in one piece, with undecoded fields."""

import msgspec

ABSENT = msgspec.Raw(b"")


class ChatMessage(msgspec.Struct):
    """A message of a chat; `reasoning` is vLLM's, `reasoning_content` its older name."""

    role: str = ""
    content: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    reasoning_content: msgspec.Raw = ABSENT
    tool_calls: msgspec.Raw = ABSENT
    tool_call_id: msgspec.Raw = ABSENT


class ContentPart(msgspec.Struct):
    """A part of a message's content; `uuid` is vLLM's, and names a medium."""

    type: str = "text"
    text: msgspec.Raw = ABSENT
    uuid: msgspec.Raw = ABSENT


class AnyBody(msgspec.Struct):
    """The fields that bodies of all APIs may have.

    All but the prompts are read one by one (`coercion.py`), since servers accept values in other
    forms too.
    """

    model: msgspec.Raw = ABSENT
    """The model's name."""
    stream: msgspec.Raw = ABSENT
    """Whether the answer comes as a stream."""
    cache_salt: msgspec.Raw = ABSENT
    """A salt that separates its cached blocks from others (vLLM)."""
    max_tokens: msgspec.Raw = ABSENT
    """The limit on the tokens of an answer."""
    max_completion_tokens: msgspec.Raw = ABSENT
    """The same; a chat's newer name of it."""
    max_output_tokens: msgspec.Raw = ABSENT
    """The same in the Responses API."""
    n: msgspec.Raw = ABSENT
    """The number of answers."""
    prompt_logprobs: msgspec.Raw = ABSENT
    """How many log probabilities each token of the prompt gets (vLLM)."""
    echo: msgspec.Raw = ABSENT
    """Whether the answer repeats the prompt."""
    logprobs: msgspec.Raw = ABSENT
    """The number of log probabilities of each token; in a chat, whether it gets any."""
    top_logprobs: msgspec.Raw = ABSENT
    """How many it gets in a chat."""


class ChatBody(AnyBody):
    """OpenAI's Chat Completions API; `documents` and the template's fields are vLLM's."""

    messages: list[ChatMessage] | None = None
    tools: msgspec.Raw = ABSENT
    documents: msgspec.Raw = ABSENT
    chat_template: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT
    reasoning_effort: msgspec.Raw = ABSENT


class CompletionsBody(AnyBody):
    """`prompt_embeds` is vLLM's: a prompt that is not text."""

    prompt: msgspec.Raw = ABSENT
    prompt_embeds: msgspec.Raw = ABSENT


class EmbeddingsBody(AnyBody):
    """OpenAI's Embeddings API; `messages` is vLLM's: those of a chat, or of several."""

    input: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT


class ResponsesBody(AnyBody):
    """OpenAI's Responses API; `chat_template_kwargs` is vLLM's."""

    input: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    reasoning: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT


class ConversationsBody(AnyBody):
    """OpenAI's Conversations API."""

    items: msgspec.Raw = ABSENT


class MessagesBody(AnyBody):
    """Anthropic's Messages API; `chat_template_kwargs` is vLLM's."""

    messages: list[ChatMessage] | None = None
    system: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
    thinking: msgspec.Raw = ABSENT
    output_config: msgspec.Raw = ABSENT
    chat_template_kwargs: msgspec.Raw = ABSENT


class GenerateBody(AnyBody):
    """vLLM's `/inference/v1/generate`."""

    token_ids: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT
    features: msgspec.Raw = ABSENT


class SglangGenerateBody(AnyBody):
    """SGLang's `/generate`."""

    input_ids: msgspec.Raw = ABSENT
    input_embeds: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT
    extra_key: msgspec.Raw = ABSENT
    sampling_params: msgspec.Raw = ABSENT


class RawPredictBody(AnyBody):
    """Vertex AI's raw prediction: the body of a chat, of a response or of a completion."""

    messages: list[ChatMessage] | None = None
    input: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    tools: msgspec.Raw = ABSENT
