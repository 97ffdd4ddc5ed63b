"""Requests of Anthropic's as vLLM turns them into chats, worked out by hand from its converter."""

import pytest

from epp.adapters.tokens.anthropic_chat import as_chat, chat_of
from epp.adapters.tokens.fallback import TextFallback
from epp.model.request import Api
from tests.adapters.tokens.bodies import asked, chat

BILLING = {"type": "text", "text": "x-anthropic-billing-header: cch=1"}
CALL = {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "é"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
LINK = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}


def text(words):
    return {"type": "text", "text": words, "cache_control": {"type": "ephemeral"}}


def result(content):
    return {"type": "tool_result", "tool_use_id": "t1", "content": content}


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


CASES = [
    pytest.param(
        [{"role": "user", "content": "hi"}], [{"role": "user", "content": "hi"}], id="str"
    ),
    pytest.param([user(text("hi"))], [{"role": "user", "content": "hi"}], id="one text"),
    pytest.param(
        [user(text("what?"), IMAGE, LINK)],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what?"},
                    PICTURE,
                    {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
                ],
            }
        ],
        id="images",
    ),
    pytest.param(
        [
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": "well"}, text("look"), CALL],
            }
        ],
        [
            {
                "role": "assistant",
                "reasoning": "well",
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "clock", "arguments": '{"zone": "\\u00e9"}'},
                    }
                ],
                "content": "look",
            }
        ],
        id="a call",
    ),
    pytest.param(
        [user(result("nine"), text("go on"))],
        [
            {"role": "tool", "tool_call_id": "t1", "content": "nine"},
            {"role": "user", "content": "go on"},
        ],
        id="a result goes first",
    ),
    pytest.param(
        [user(result([text("a"), IMAGE, text("b")]))],
        [
            {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
            {"role": "user", "content": [PICTURE]},
        ],
        id="a result with an image",
    ),
    pytest.param(
        [user({"type": "redacted_thinking", "data": "x"}, text("hi"))],
        [{"role": "user", "content": "hi"}],
        id="what is opaque is left out",
    ),
    pytest.param(
        [{"role": "system", "content": [BILLING, text("b")]}, user(text("hi"))],
        [{"role": "system", "content": "ab"}, {"role": "user", "content": "hi"}],
        id="system messages are joined",
    ),
]


@pytest.mark.parametrize(("turns", "messages"), CASES)
def test_messages_are_those_of_vllm(turns, messages):
    system = "a" if turns[0]["role"] == "system" else None
    assert chat_of({"messages": turns, "system": system})["messages"] == messages


def test_tools_and_the_templates_words_are_passed_on():
    tool = {"name": "clock", "description": "d", "input_schema": {"type": "object"}, "type": "x"}
    made = chat_of({"messages": [], "tools": [tool], "chat_template_kwargs": {"a": 1}})
    function = {"name": "clock", "description": "d", "parameters": {"type": "object"}}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert made["chat_template_kwargs"] == {"a": 1}
    assert chat_of({"messages": [], "system": [BILLING]})["messages"] == []


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": 5},
        {"messages": [5]},
        {"messages": [{"role": "user"}]},
        {"messages": [user(5)]},
        {"messages": [user({"type": "image"})]},
        {"messages": [], "tools": [5]},
        {"messages": [], "system": [5]},
    ],
)
def test_what_does_not_fit_stays_text(body):
    with pytest.raises(TextFallback):
        chat_of(body)


def test_other_apis_are_left_alone():
    request = chat("hi")
    assert as_chat(request) is request
    made = as_chat(asked(Api.MESSAGES, messages=[{"role": "user", "content": "hi"}]))
    assert made.api is Api.CHAT
