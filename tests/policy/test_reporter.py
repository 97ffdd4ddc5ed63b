"""The reporter of attributes: CEL over usage, as llm-d-router hands it over."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.model.request import Usage
from epp.policy.reporter import AttributeKey, AttributeReporter, ReportedAttribute
from epp.policy.reporter import RequestAttributeReporter as Reporter
from tests.policy.started import started

USAGE = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=64)


def report(expression, condition="", usage=USAGE):
    attribute = ReportedAttribute(AttributeKey("tokens"), expression, condition)
    reporter = started(Reporter([attribute]))
    assert isinstance(reporter, AttributeReporter)
    return reporter.report(usage)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("usage.prompt_tokens + usage.completion_tokens", 120),
        ("usage.total_tokens", 120),
        ("usage.prompt_tokens - usage.prompt_tokens_details.cached_tokens", 36),
        ("usage.completion_tokens * 2.5", 50),
        ("int(usage.prompt_tokens) / 7", 14),
        ("7.9", 7),
    ],
)
def test_numbers_are_reported_as_whole_ones(expression, value):
    assert report(expression) == ("envoy.lb", "tokens", value)


@pytest.mark.parametrize(
    "expression",
    [
        *("0", "0.4", "'text'", "true", "usage.completion_tokens / 0.0 > 1.0"),
        *("usage.nothing", "1 / 0", "usage.completion_tokens / 0.0", "-1.0 / 0.0", "0.0 / 0.0"),
    ],
)
def test_nothing_is_reported_without_a_number(expression):
    assert report(expression) is None


def test_a_condition_must_hold():
    assert report("1", "usage.prompt_tokens > 99.0") is not None
    assert report("1", "usage.prompt_tokens > 100.0") is None
    assert report("1", "usage.nothing") is None
    assert report("1", "has(usage.prompt_tokens_details)", Usage(1, 2)) is None


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ("[]", "`attributes` has 0 entries; it takes only one"),
        ("[{key: {name: ''}, expression: '1'}]", "must not be empty"),
        ("[{key: {name: a}, expression: 'usage. +'}]", "`usage. +` is not valid CEL"),
        ("[{key: {name: a}, expression: 'tokens'}]", "undeclared reference to 'tokens'"),
        ("[{key: {name: a}, expression: '1', condition: '('}]", "`(` is not valid CEL"),
        ("[{key: {nam: a}, expression: '1'}]", "unknown parameter `nam`"),
    ],
)
def test_what_cannot_be_reported_is_an_error(attributes, said):
    kind = "request-attribute-reporter"
    with pytest.raises(ConfigError) as raised:
        load(f"plugins: [{{type: {kind}, parameters: {{attributes: {attributes}}}}}]")
    assert raised.value.place.startswith("plugins[0].parameters")
    assert said in raised.value.problem
