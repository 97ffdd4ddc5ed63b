"""Reports a number about each response to the proxy: a CEL expression over its usage.

The number goes into the dynamic metadata of the last message of the response, where filters of the
gateway (rate limits by tokens, say) find it.
"""

from math import inf
from typing import Any

import msgspec

from epp.errors import ConfigError
from epp.model.request import Usage
from epp.policy.plugins import PluginContext, PluginParameters

_EXTRA = "pip install 'warmpick[reporter]'"


class AttributeKey(PluginParameters, frozen=True):
    """Where the value goes."""

    name: str
    namespace: str = "envoy.lb"


class ReportedAttribute(PluginParameters, frozen=True):
    """A value: an `expression` in CEL over `usage`, if `condition`, in CEL too, holds.

    `usage` has `prompt_tokens`, `completion_tokens`, `total_tokens` and
    `prompt_tokens_details.cached_tokens`, as floating-point numbers.
    """

    key: AttributeKey
    expression: str
    condition: str = ""


class RequestAttributeReporter(PluginParameters, frozen=True):
    """Reports one attribute of each response."""

    attributes: list[ReportedAttribute]

    def __post_init__(self) -> None:
        if len(self.attributes) != 1:
            raise ValueError(f"`attributes` has {len(self.attributes)} entries; it takes only one")
        if not self.attributes[0].key.name or not self.attributes[0].expression:
            raise ValueError("`key.name` and `expression` must not be empty")

    def start(self, context: PluginContext) -> "AttributeReporter":
        """Compile the expressions. Raises `ConfigError` if CEL cannot."""
        attribute = self.attributes[0]
        return AttributeReporter(
            attribute.key,
            _compiled(attribute.expression),
            _compiled(attribute.condition) if attribute.condition else None,
        )


def _compiled(expression: str) -> Any:  # noqa: ANN401 (a library without types)
    try:
        from cel_expr_python import cel  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigError(f"`{error.name}` is missing: {_EXTRA}") from error
    environment = cel.NewEnv(variables={"usage": cel.Type.DYN})
    try:
        return environment.compile(expression)
    except RuntimeError as error:
        problem = str(error).splitlines()[0]
        raise ConfigError(f"`{expression}` is not valid CEL: {problem}") from None


class AttributeReporter(msgspec.Struct, frozen=True, eq=False):
    """Evaluates an attribute for each response."""

    key: AttributeKey
    expression: Any
    condition: Any

    def report(self, usage: Usage) -> tuple[str, str, float] | None:
        """Return the value to report about a response, rounded towards zero.

        None if the condition does not hold, or the value is between -1 and 1, infinite or not a
        number.
        """
        data = {"usage": _numbers(usage)}
        # The value of what cannot be evaluated is a text; a number divided by 0.0 is infinite.
        if self.condition is not None and self.condition.eval(data=data).value() is not True:
            return None
        value = self.expression.eval(data=data).value()
        if type(value) not in {int, float} or not 1 <= abs(value) < inf:
            return None
        return self.key.namespace, self.key.name, float(int(value))


def _numbers(usage: Usage) -> dict[str, Any]:
    """Return usage as CEL sees it in llm-d-router: a protobuf struct, whose numbers are doubles."""
    prompt, completion = float(usage.prompt_tokens), float(usage.completion_tokens)
    numbers: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }
    if usage.cached_tokens is not None:
        numbers["prompt_tokens_details"] = {"cached_tokens": float(usage.cached_tokens)}
    return numbers
