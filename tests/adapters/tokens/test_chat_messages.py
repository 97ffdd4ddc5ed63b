"""Messages as vLLM hands them to a template; expectations are vLLM 0.32's own output."""

import pytest

from epp.adapters.tokens.fallback import FallbackCause, TextFallback
from epp.adapters.tokens.local.chat_messages import (
    ContentFormat,
    conversation,
    tools_of,
    without_developers,
)

STRING, PARTS = ContentFormat.STRING, ContentFormat.PARTS


def text(word, **more):
    return {"type": "text", "text": word, **more}


@pytest.mark.parametrize(
    ("content", "string", "parts"),
    [
        ("hello", "hello", [text("hello")]),
        ("", "", [text("")]),
        (None, "", []),
        ([], "", []),
        ([text("a"), text("b")], "a\nb", [text("a"), text("b")]),
        (["a", text("b")], "a\nb", [text("a"), text("b")]),
        ([text(""), text("b"), text("")], "b", [text(""), text("b"), text("")]),
        ([text(None), text("b")], "b", [text("b")]),
        ([{"type": "refusal", "refusal": "no"}], "no", [text("no")]),
        ([{"type": "input_text", "text": "in"}], "in", [text("in")]),
        ([{"type": "thinking", "thinking": "hm"}], "hm", [text("hm")]),
        ([{"type": "tool_reference", "name": "f"}], "f", [{"type": "tool_reference", "name": "f"}]),
        ([text("a", cache_control={"x": 1})], "a", [text("a", cache_control={"x": 1})]),
    ],
)
def test_content(content, string, parts):
    message = {"role": "user", "content": content}
    assert conversation([message], STRING) == [{"role": "user", "content": string}]
    assert conversation([message], PARTS) == [{"role": "user", "content": parts}]


@pytest.mark.parametrize("shape", ContentFormat)
def test_a_tools_content_is_always_a_string(shape):
    message = {"role": "tool", "tool_call_id": "c", "content": [text("a"), text("b")]}
    assert conversation([message], shape) == [
        {"role": "tool", "content": "a\nb", "tool_call_id": "c"}
    ]


@pytest.mark.parametrize(
    ("arguments", "decoded"),
    [
        ('{"b": 1, "a": [null]}', {"b": 1, "a": [None]}),
        ("", {}),
        ("[1]", {}),
        ("not json", {}),
        ("[" * 100_000, {}),
    ],
)
def test_arguments_of_calls_are_decoded(arguments, decoded):
    call = {"type": "function", "index": 0, "function": {"name": "f", "arguments": arguments}}
    call["id"] = "c"
    (message,) = conversation([{"role": "assistant", "tool_calls": [call]}], STRING)
    (made,) = message["tool_calls"]
    assert list(made) == ["id", "function", "type", "index"]
    assert list(made["function"]) == ["arguments", "name"]
    assert made["function"]["arguments"] == decoded


def test_empty_tool_calls_are_omitted():
    message = {"role": "assistant", "content": "a", "tool_calls": []}
    assert conversation([message], STRING) == [{"role": "assistant", "content": "a"}]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_has_two_names(field):
    (message,) = conversation([{"role": "assistant", "content": "a", field: "r"}], STRING)
    assert (message["reasoning"], message["reasoning_content"]) == ("r", "r")
    (message,) = conversation([{"role": "user", "content": "a", field: "r"}], STRING)
    assert message == {"role": "user", "content": "a"}


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ("x-anthropic-billing-header: cch=1\nYou are", "You are"),
        ("x-anthropic-billing-header: cch=1", ""),
        (
            "You are\nx-anthropic-billing-header: cch=1",
            "You are\nx-anthropic-billing-header: cch=1",
        ),
        ([text("x-anthropic-billing-header: a\n"), text("You")], "You"),
        (["x-anthropic-billing-header: a\nb", text("You")], "b\nYou"),
    ],
)
def test_the_billing_line_is_removed(content, kept):
    (message,) = conversation([{"role": "system", "content": content}], STRING)
    assert message["content"] == kept
    if isinstance(content, str):
        (message,) = conversation([{"role": "user", "content": content}], STRING)
        assert message["content"] == content


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "image_url", "image_url": {"url": "data:"}}],
        [{"type": "input_audio", "input_audio": {}}],
        [text("a"), {"type": "video_url"}],
        [text("a", uuid="u")],
        [{"type": "new"}],
    ],
)
def test_media_are_not_tokenized_here(content):
    with pytest.raises(TextFallback) as refused:
        conversation([{"role": "user", "content": content}], STRING)
    assert refused.value.cause is FallbackCause.MEDIA


@pytest.mark.parametrize(
    "message",
    [
        "hello",
        {"content": "no role"},
        {"role": 1, "content": ""},
        {"role": "user", "content": 7},
        {"role": "user", "content": {"type": "text"}},
        {"role": "user", "content": [{"text": "no type"}]},
        {"role": "user", "content": [7]},
        {"role": "system", "content": [7]},
        {"role": "user", "content": [{"type": "thinking", "thinking": None}]},
        {"role": "assistant", "tool_calls": {}},
        {"role": "assistant", "tool_calls": [7]},
        {"role": "assistant", "tool_calls": [{"type": "function"}]},
        {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f"}}]},
        {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"arguments": ""}}]},
        {"role": "developer", "content": "", "tools": {}},
        {"role": "developer", "content": "", "tools": [{"type": "function"}]},
    ],
)
def test_what_vllm_refuses_is_malformed(message):
    with pytest.raises(TextFallback) as refused:
        conversation([message], STRING)
    assert refused.value.cause is FallbackCause.MALFORMED


def test_names_and_tasks_are_kept():
    messages = [{"role": "user", "content": "a", "name": "bob", "task": "t", "other": 1}]
    assert conversation(messages, STRING) == [
        {"role": "user", "content": "a", "name": "bob", "task": "t"}
    ]


@pytest.mark.parametrize(
    ("tool", "made"),
    [
        (
            {"function": {"parameters": {"z": 1}, "name": "f", "extra": 1}, "more": 2},
            {
                "type": "function",
                "function": {"name": "f", "description": None, "parameters": {"z": 1}},
            },
        ),
        (
            {"type": "function", "function": {"strict": False, "name": "f", "description": "d"}},
            {
                "type": "function",
                "function": {"name": "f", "description": "d", "parameters": None, "strict": False},
            },
        ),
        (
            {"defer_loading": True, "type": "function", "function": {"name": "f"}},
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": None,
                    "parameters": None,
                    "defer_loading": True,
                },
                "defer_loading": True,
            },
        ),
    ],
)
def test_tools_are_written_out(tool, made):
    tools = tools_of({"tools": [tool]})
    assert tools is not None
    (found,) = tools
    assert found == made
    assert [*found, *found["function"]] == [*made, *made["function"]]


@pytest.mark.parametrize("tools", [{}, "f", [7], [{}], [{"function": {}}]])
def test_tools_that_are_none(tools):
    assert tools_of({}) is None
    assert tools_of({"tools": []}) == []
    with pytest.raises(TextFallback) as refused:
        tools_of({"tools": tools})
    assert refused.value.cause is FallbackCause.MALFORMED


def said(*pairs):
    return [{"role": role, "content": content} for role, content in pairs]


@pytest.mark.parametrize(
    ("messages", "seen"),
    [
        (said(("user", "u")), said(("user", "u"))),
        (said(("system", "s"), ("system", "t")), said(("system", "s"), ("system", "t"))),
        (said(("developer", "d"), ("user", "u")), said(("system", "d"), ("user", "u"))),
        (
            said(("system", "s"), ("user", "u"), ("developer", "d")),
            said(("system", "s\n\nd"), ("user", "u")),
        ),
        (said(("user", "u"), ("developer", "d")), said(("system", "d"), ("user", "u"))),
        (said(("developer", ""), ("developer", "")), said(("system", ""))),
        (
            said(("user", "u"), ("developer", [text("a"), text("b")])),
            said(("system", "a\nb"), ("user", "u")),
        ),
    ],
)
def test_developers_become_the_system(messages, seen):
    assert without_developers(messages) == seen


def test_a_developers_tools_go_with_the_role():
    messages = [{"role": "developer", "content": "d", "tools": None}]
    assert without_developers(messages) == said(("system", "d"))


def test_a_developer_may_have_no_tools_and_a_result_no_call():
    messages = [{"role": "developer", "content": "d"}, {"role": "tool", "content": "t"}]
    assert conversation(messages, STRING) == [messages[0] | {"tools": None}, messages[1]]


def test_a_developers_tools_keep_the_servers_order():
    tool = {"type": "function", "function": {"parameters": {}, "name": "g"}}
    (message,) = conversation([{"role": "developer", "content": "d", "tools": [tool]}], STRING)
    assert list(message["tools"][0]) == ["function", "type"]
    assert list(message["tools"][0]["function"]) == ["name", "parameters"]
