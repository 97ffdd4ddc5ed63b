"""Parsers have their meaning: those that a configuration names are the ones that read."""

import pytest

from epp.config.file import load
from epp.config.parsers import PARSERS, PassthroughParser
from epp.errors import ConfigError
from epp.model.request import Api

HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
H2C = "kubernetes.io/h2c"


def settings(*names, listed=None):
    plugins = "".join(f"- {{type: {name}}}\n" for name in (names if listed is None else listed))
    refs = "".join(f"  - {{pluginRef: {name}}}\n" for name in names)
    parsers = f"requestHandler:\n  parsers:\n{refs}" if names else ""
    return load(f"{HEAD}plugins:\n- {{type: random-picker}}\n{plugins}{parsers}").parsers


def apis(parsers, *paths):
    return [parsers.apis.api_of(path) for path in paths]


def test_the_default_is_llm_d_routers():
    paths = ("/v1/responses", "/v1/messages", "/inference/v1/generate", "/generate", "/x")
    assert apis(settings(), *paths) == [
        *(Api.RESPONSES, Api.MESSAGES, Api.GENERATE, Api.OTHER, Api.OTHER)
    ]


def test_only_what_is_named_reads():
    parsers = settings("anthropic-parser", "sglanghttp-parser")
    assert apis(parsers, "/v1/messages", "/generate", "/v1/responses") == [
        *(Api.MESSAGES, Api.SGLANG_GENERATE, None)
    ]


def test_a_parser_need_not_be_listed_among_the_plug_ins():
    assert settings("vllmgrpc-parser", listed=()).kinds == (PARSERS["vllmgrpc-parser"],)


def test_passthrough_alone_reads_nothing():
    parsers = settings("passthrough-parser")
    assert apis(parsers, "/v1/chat/completions") == [Api.OTHER]
    assert parsers.kinds == (PassthroughParser,)


def test_what_stands_behind_passthrough_reads_nothing_and_this_is_said():
    parsers = settings("openai-parser", "passthrough-parser", "anthropic-parser")
    assert apis(parsers, "/v1/messages", "/v1/responses") == [Api.OTHER, Api.RESPONSES]
    assert parsers.warnings[0].startswith("requestHandler.parsers[2] reads nothing")


def test_a_parser_that_no_one_names_is_said_to_read_nothing():
    assert settings("openai-parser", listed=("openai-parser", "vertexai-parser")).warnings == (
        "parser `vertexai-parser` reads nothing: requestHandler.parsers does not name it",
    )
    assert settings(listed=("anthropic-parser",)).warnings == ()


@pytest.mark.parametrize(
    ("names", "place", "problem"),
    [
        (("openai-parser", "openai-parser"), "parsers[1].pluginRef", "a second openai-parser"),
        (("random-picker",), "parsers[0].pluginRef", "`random-picker` is not a parser"),
        (("openai-parsr",), "parsers[0].pluginRef", "`openai-parsr`: did you mean `openai-parser`"),
    ],
)
def test_mistakes_name_their_place(names, place, problem):
    listed = [name for name in {*names} if name.endswith("parser")]
    with pytest.raises(ConfigError) as error:
        settings(*names, listed=listed)
    assert error.value.place == f"requestHandler.{place}"
    assert problem in error.value.problem


@pytest.mark.parametrize(
    ("names", "protocol", "fault"),
    [
        ((), "", ""),
        ((), "http", ""),
        ((), H2C, ""),
        (("vllmgrpc-parser",), H2C, ""),
        (("vllmgrpc-parser",), "", ""),
        (("openai-parser", "vllmgrpc-parser"), "http", "`vllmgrpc-parser` cannot read http"),
        (("passthrough-parser",), "kubernetes.io/wss", ""),
        (("openai-parser",), "kubernetes.io/wss", "`openai-parser` cannot read kubernetes.io/wss"),
    ],
)
def test_parsers_and_a_pools_protocol(names, protocol, fault):
    assert settings(*names).fault(protocol) == fault


@pytest.mark.parametrize("flag", ["true", "false"])
def test_priorities_are_propagated_on_demand(flag):
    text = (
        f"{HEAD}plugins: [{{type: random-picker}}]\nrequestHandler: {{propagatePriority: {flag}}}"
    )
    assert load(text).propagate_priority == (flag == "true")
