"""Parsers: plug-ins that choose which APIs are read, by llm-d-router's types, paths and rules."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import msgspec
from msgspec import defstruct

from epp.config.schema import Reference
from epp.errors import ConfigError
from epp.model.endpoint import H2C
from epp.policy.plugins import PluginParameters
from epp.protocol.bodies import apis
from epp.protocol.bodies.apis import ApiTable, Claims

# Gateway API inference extension, `AppProtocol`.
_HTTP = "http"
PLACE = "requestHandler.parsers"


class Parser(PluginParameters, frozen=True):
    """Reads requests to the paths of `claims`; without any, it passes all others through.

    `protocols` are those of a pool that it can read; empty: any.
    """

    claims: ClassVar[Claims]
    protocols: ClassVar[frozenset[str]]


def _parser(name: str, claims: Claims, *protocols: str) -> type[Parser]:
    """Return the class of a parser, which has no parameters."""
    values = {"claims": claims, "protocols": frozenset(protocols)}
    made = defstruct(name, (), bases=(Parser,), module=__name__, namespace=values, frozen=True)
    return cast("type[Parser]", made)


OpenAiParser = _parser("OpenAiParser", apis.OPENAI, _HTTP, H2C)
AnthropicParser = _parser("AnthropicParser", apis.ANTHROPIC, _HTTP, H2C)
VllmHttpParser = _parser("VllmHttpParser", apis.VLLM_HTTP, _HTTP, H2C)
SglangHttpParser = _parser("SglangHttpParser", apis.SGLANG_HTTP, _HTTP, H2C)
VllmGrpcParser = _parser("VllmGrpcParser", apis.VLLM_GRPC, H2C)
VertexAiParser = _parser("VertexAiParser", apis.VERTEX, H2C)
PassthroughParser = _parser("PassthroughParser", {})

PARSERS: dict[str, type[Parser]] = {
    "openai-parser": OpenAiParser,
    "anthropic-parser": AnthropicParser,
    "vllmhttp-parser": VllmHttpParser,
    "sglanghttp-parser": SglangHttpParser,
    "vllmgrpc-parser": VllmGrpcParser,
    "vertexai-parser": VertexAiParser,
    "passthrough-parser": PassthroughParser,
}
"""Parsers by their types."""

_TYPES = {kind: name for name, kind in PARSERS.items()}
_DEFAULT = (OpenAiParser, AnthropicParser, VllmHttpParser, PassthroughParser)


class ParserSettings(msgspec.Struct, frozen=True):
    """The parsers of a picker, and the table of the APIs that they read.

    `warnings` name parsers that read nothing.
    """

    kinds: tuple[type[Parser], ...] = _DEFAULT
    apis: ApiTable = apis.DEFAULT_APIS
    warnings: tuple[str, ...] = ()

    def fault(self, app_protocol: str) -> str:
        """Return why these parsers cannot read a pool's requests; empty if they can.

        `app_protocol` is the pool's; if it is empty, any parsers will do.
        """
        if not app_protocol:
            return ""
        unable = [
            f"`{_TYPES[kind]}`"
            for kind in self.kinds
            if kind.protocols and app_protocol not in kind.protocols
        ]
        return f"{', '.join(unable)} cannot read {app_protocol}" if unable else ""


def parser_settings(
    references: Sequence[Reference], refer: Callable[[str, str], Any], structs: Mapping[str, Any]
) -> ParserSettings:
    """Return the settings that the references of a configuration make. Raises `ConfigError`.

    `refer` returns a plug-in by its name and the place that names it, `structs` are all of them.
    Without references the parsers are llm-d-router's default.
    """
    kinds: list[type[Parser]] = []
    warnings: list[str] = []
    for position, reference in enumerate(references):
        place = f"{PLACE}[{position}]"
        if PassthroughParser in kinds:
            warnings.append(
                f"{place} reads nothing: the passthrough-parser before it takes all requests"
            )
            continue
        parser = refer(reference.plugin_ref, f"{place}.pluginRef")
        if not isinstance(parser, Parser):
            problem = f"`{reference.plugin_ref}` is not a parser; write one of {', '.join(PARSERS)}"
            raise ConfigError(problem, f"{place}.pluginRef")
        if type(parser) in kinds:
            problem = f"a second {_TYPES[type(parser)]}: list each type once"
            raise ConfigError(problem, f"{place}.pluginRef")
        kinds.append(type(parser))
    kinds = kinds or [*_DEFAULT]
    for name, parser in structs.items():
        if isinstance(parser, Parser) and type(parser) not in kinds:
            warnings.append(f"parser `{name}` reads nothing: {PLACE} does not name it")
    claims = [kind.claims for kind in kinds]
    table = ApiTable(claims, passthrough=PassthroughParser in kinds)
    return ParserSettings(tuple(kinds), table, tuple(warnings))
