"""Requests of Anthropic's as vLLM turns them into chats, worked out by hand from its converter."""

import pytest

from epp.adapters.tokens.anthropic_chat import MessagesRules, as_chat, chat_of
from epp.adapters.tokens.fallback import TextFallback
from epp.adapters.tokens.local.messages_rules import rules_of
from epp.adapters.tokens.local.template import ChatTemplate
from epp.model.request import Api
from tests.adapters.tokens.bodies import asked, chat
from tests.adapters.tokens.folders import CHATML

BILLING = {"type": "text", "text": "x-anthropic-billing-header: cch=1"}
CALL = {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "é"}}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
LINK = {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
FOUND = {"type": "tool_reference", "name": "clock"}


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
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "t1"}]}],
        [
            {
                "role": "assistant",
                "tool_calls": [
                    {"id": "t1", "type": "function", "function": {"name": "", "arguments": "{}"}}
                ],
            }
        ],
        id="nothing but a call",
    ),
    pytest.param(
        [{"role": "assistant", "content": [result("nine"), IMAGE]}],
        [
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "Tool result: nine"}, PICTURE],
            }
        ],
        id="a result of the assistant's own",
    ),
    pytest.param(
        [{"role": "assistant", "content": [{"type": "tool_result"}]}],
        [{"role": "assistant", "content": "Tool result: "}],
        id="an empty one",
    ),
    pytest.param(
        [{"role": "assistant", "content": [{"type": "thinking", "thinking": ""}, text("look")]}],
        [{"role": "assistant", "reasoning": "", "content": "look"}],
        id="thinking that is not shown",
    ),
    pytest.param(
        [user({"type": "text"}, {"type": "text", "text": None}, text("hi"))],
        [{"role": "user", "content": "hi"}],
        id="texts without text",
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
        [user({"type": "tool_result"}), user(IMAGE)],
        [
            {"role": "tool", "tool_call_id": "", "content": ""},
            {"role": "user", "content": [PICTURE]},
        ],
        id="a result of nothing, and an image alone",
    ),
    pytest.param(
        [user(result([{}, FOUND, FOUND | {"tool_name": "map"}, {"type": "tool_reference"}]))],
        [
            {"role": "tool", "tool_call_id": "t1", "content": ""},
            {"role": "tool", "tool_call_id": "t1", "content": [FOUND, FOUND | {"name": "map"}]},
        ],
        id="references to tools",
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


def test_later_system_messages_stay_where_they_are_if_the_template_takes_them():
    turns = [
        user(text("hi")),
        {"role": "system", "content": [BILLING, text("b"), text("c")]},
        {"role": "system", "content": "d"},
        {"role": "system", "content": "x-anthropic-billing-header: cch=2"},
        user(text("go on")),
    ]
    assert chat_of({"messages": turns, "system": "a"}, MessagesRules(merges=False))["messages"] == [
        {"role": "system", "content": "a"},
        {"role": "user", "content": "hi"},
        {"role": "system", "content": "bc"},
        {"role": "system", "content": "d"},
        {"role": "user", "content": "go on"},
    ]


OFF, LOW = {"thinking": {"type": "disabled"}}, {"output_config": {"effort": "low"}}
BUDGET = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize(
    ("fields", "effort"),
    [
        (OFF, "none"),
        (LOW, "low"),
        (OFF | LOW, "none"),
        (BUDGET | LOW, "low"),
        (BUDGET, None),
        ({"thinking": {"type": "adaptive"}, "output_config": {}}, None),
        ({"thinking": None, "output_config": None}, None),
    ],
)
def test_thinking_and_effort_are_a_reasoning_effort(fields, effort):
    body = {"messages": [], **fields}
    assert chat_of(body, MessagesRules(disabled_effort="none")).get("reasoning_effort") == effort
    assert "reasoning_effort" not in chat_of(body)


SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('late') }}{% endif %}{% endfor %}"
)
THINKS = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think>{% endif %}"
REFUSES = CHATML + "{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}"
DEFAULTS = CHATML + "{{ reasoning_effort if reasoning_effort in ('low', 'high') else 'max' }}"


@pytest.mark.parametrize(
    ("sources", "rules"),
    [
        ({"default": CHATML}, (False, "low")),
        ({"default": SYSTEM_FIRST}, (True, "low")),
        ({"default": CHATML, "tool_use": SYSTEM_FIRST}, (True, "low")),
        ({"default": CHATML, "other": SYSTEM_FIRST}, (False, "low")),
        ({"tool_use": CHATML}, (True, "low")),
        ({"default": "{{ strftime_now('') }}" + CHATML}, (True, "low")),
        ({"default": THINKS}, (False, "none")),
        ({"default": REFUSES}, (False, "low")),
        ({"default": DEFAULTS}, (False, "low")),
        ({"default": CHATML + "{{ reasoning_effort }}"}, (False, "none")),
    ],
)
def test_a_template_is_asked_as_vllm_asks_it(sources, rules):
    assert rules_of(ChatTemplate(sources, {})) == MessagesRules(*rules)


def test_tools_and_the_templates_words_are_passed_on():
    tool = {"name": "clock", "description": "d", "input_schema": {"type": "object"}, "type": "x"}
    made = chat_of({"messages": [], "tools": [tool], "chat_template_kwargs": {"a": 1}})
    function = {"name": "clock", "description": "d", "parameters": {"type": "object"}}
    assert made["tools"] == [{"type": "function", "function": function}]
    assert made["chat_template_kwargs"] == {"a": 1}
    assert chat_of({"messages": [], "system": [BILLING]})["messages"] == []


NEWER = MessagesRules(merges=False, disabled_effort="none")


def tool(name="clock", **options):
    return {"name": name, "input_schema": {"type": "object"}, **options}


def function(name="clock", **options):
    made = {"name": name, "parameters": {"type": "object"}, **options}
    return {"type": "function", "function": made}


@pytest.mark.parametrize("options", [{"strict": True}, {"defer_loading": False}])
def test_the_options_of_a_tool_are_passed_on_where_vllm_does(options):
    body = {"messages": [], "tools": [tool(**options)]}
    assert chat_of(body, NEWER)["tools"] == [function(**options)]
    assert chat_of(body)["tools"] == [function()]


def test_a_tools_schema_is_that_of_an_object_unless_it_says_otherwise():
    schema: dict[str, object] = {"properties": {"zone": {}}}
    made = chat_of({"messages": [], "tools": [tool(input_schema=schema)]}, NEWER)
    assert made["tools"] == [function(parameters=schema | {"type": "object"})]
    assert schema == {"properties": {"zone": {}}}


def test_an_empty_list_of_tools_is_not_sent_to_a_server_that_would_refuse_it():
    body: dict[str, object] = {"messages": [], "tools": []}
    assert chat_of(body, NEWER)["tools"] == []
    assert "tools" not in chat_of(body)


def changed(kind, **change):
    return {"role": "system", "content": [{"type": kind, "tool": change}]}


ADD, REMOVE, CLOCK = "tool_addition", "tool_removal", {"type": "tool_reference", "name": "clock"}


@pytest.mark.parametrize(
    ("tools", "turns", "left"),
    [
        ([tool(), tool("map")], [changed(REMOVE, **CLOCK)], [function("map")]),
        ([tool()], [changed(REMOVE, **CLOCK), changed(ADD, **CLOCK)], [function()]),
        ([tool(defer_loading=True, strict=True)], [changed(ADD, **CLOCK)], [function(strict=True)]),
        (
            None,
            [changed(ADD, type="tool_definition", definition=tool(strict=True))],
            [function(strict=True)],
        ),
        ([tool()], [changed(REMOVE, **CLOCK)], []),
        ([tool()], [changed(REMOVE, **CLOCK), changed("text")], []),
        ([tool()], [changed(REMOVE, **CLOCK) | {"role": "user"}], [function()]),
        (None, [], None),
    ],
)
def test_tools_are_those_at_the_end_of_a_conversation(tools, turns, left):
    made = chat_of({"messages": turns, "tools": tools}, NEWER)
    assert (made["messages"], made.get("tools")) == ([], left)


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
        {"messages": [], "tools": [{"name": "no schema"}]},
        {"messages": [], "system": [5]},
        {"messages": [], "thinking": 5},
        {"messages": [], "output_config": [5]},
        {"messages": [{"role": "system", "content": [5]}]},
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
