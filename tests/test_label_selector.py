"""Label selectors as text."""

import pytest

from epp.label_selector import parse_label_selector


@pytest.mark.parametrize(
    ("text", "labels", "selected"),
    [
        ("app=vllm", {"app": "vllm"}, True),
        ("app==vllm", {"app": "vllm"}, True),
        ("app = vllm", {"app": "sglang"}, False),
        ("app=", {"app": ""}, True),
        ("app!=vllm", {}, True),
        ("app!=vllm", {"app": "vllm"}, False),
        ("app in (vllm, sglang)", {"app": "sglang"}, True),
        ("app in (vllm,sglang)", {}, False),
        ("app notin (vllm,sglang)", {"app": "triton"}, True),
        ("app", {"app": "x"}, True),
        ("!app", {"app": "x"}, False),
        ("! app", {}, True),
        (
            "llm-d.ai/role in (decode),app=vllm,!old",
            {"app": "vllm", "llm-d.ai/role": "decode"},
            True,
        ),
        ("a=1,b=2", {"a": "1"}, False),
        ("", {"a": "1"}, False),
    ],
)
def test_what_a_selector_selects(text, labels, selected):
    assert parse_label_selector(text).selects(labels) is selected


@pytest.mark.parametrize(
    "text",
    ["a in b", "a=b c", "a,,b", "a=b,", "=b", "a in (b", "a in ()x", "-a", "a=(b)", "ä=b", " "],
)
def test_what_is_no_selector_is_refused(text):
    with pytest.raises(ValueError, match="is not a requirement"):
        parse_label_selector(text)


def test_a_selector_without_end_is_refused():
    with pytest.raises(ValueError, match="at most 4096"):
        parse_label_selector("a," * 10_000)
