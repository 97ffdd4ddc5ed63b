"""The effect of each plug-in, parameter and section of a file, as lines of a table.

Every line begins with `#`, so that it may follow the file in YAML.
"""

from collections.abc import Iterator, Mapping

import msgspec

from epp.config.catalogue import unread
from epp.config.flow_control import FlowControlSection
from epp.config.schema import (
    CrossReplica,
    DataLayer,
    DiscoveryRefs,
    EndpointPickerConfig,
    PluginSpec,
    RequestHandler,
)
from epp.policy.effects import effects, without_effect
from epp.policy.plugins import effect_of

HONOURED = "honoured"
_SECTIONS: tuple[tuple[str, type[msgspec.Struct]], ...] = (
    ("requestHandler", RequestHandler),
    ("dataLayer", DataLayer),
    ("dataLayer.discovery", DiscoveryRefs),
    ("dataLayer.crossReplica", CrossReplica),
    ("flowControl", FlowControlSection),
)

_UNGATED = without_effect("feature gate `flowControl` is off")
_USED_UNGATED = "saturationDetector"

Row = tuple[str, str, str]


def report(
    config: EndpointPickerConfig, plugins: Mapping[str, object], *, gated: bool = True
) -> list[str]:
    """Return the table for an effective configuration, whose `plugins` are given by name.

    `gated`: whether the feature gate of flow control is on.
    """
    rows: list[Row] = [("PLUG-IN", "VALUE", "HERE")]
    for spec in config.plugins:
        rows += _plugin_rows(spec, type(plugins[spec.name]))
    sections = list(_section_rows(config, gated=gated))
    if sections:
        rows += [("SECTION", "", ""), *sections]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = (f"# {name:{widths[0]}}  {value:{widths[1]}}  {said}" for name, value, said in rows)
    return [line.rstrip() for line in lines]


def _plugin_rows(spec: PluginSpec, kind: type[object]) -> Iterator[Row]:
    effect = effect_of(kind)
    title = spec.name if spec.name == spec.type else f"{spec.name} ({spec.type})"
    yield title, "", str(effect or HONOURED)
    written = spec.parameters or {}
    known = effects(kind)
    ignored = unread(spec.type, written)
    for path, value in _leaves(written, ""):
        found = effect or ignored.get(path.partition(".")[0]) or known.get(path)
        yield f"  {path}", _short(value), str(found or HONOURED)


def unhonoured_sections(config: EndpointPickerConfig) -> Iterator[str]:
    """Yield a warning for each field of a section that is not honoured."""
    for name, _, said in _section_rows(config):
        if said != HONOURED:
            yield f"{name.strip()} is {said}"


def _section_rows(config: EndpointPickerConfig, *, gated: bool = True) -> Iterator[Row]:
    document = msgspec.to_builtins(config)
    for place, kind in _SECTIONS:
        section = document
        for key in place.split("."):
            section = (section or {}).get(key)
        known = effects(kind)
        idle = None if gated or kind is not FlowControlSection else _UNGATED
        for name, value in (section or {}).items():
            effect = known.get(name) or (idle if name != _USED_UNGATED else None)
            if not isinstance(value, dict) or effect is not None:
                yield f"  {place}.{name}", _short(value), str(effect or HONOURED)


def _leaves(value: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    """Yield each parameter by its dotted path; a group as its parameters."""
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _leaves(inner, f"{prefix}{key}.")
        else:
            yield prefix + key, inner


_LONGEST = 40


def _short(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
