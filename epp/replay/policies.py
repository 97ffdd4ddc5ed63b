"""Policies to compare: the product's own by name, the incumbent's, and any configuration file."""

from collections.abc import Mapping
from pathlib import Path

from epp.config.file import POLICIES, load
from epp.config.schema import near
from epp.errors import ConfigError
from epp.replay.plan import Policy

INCUMBENT_SCRAPE_SECONDS = 0.05
"""llm-d-router `--metrics-refresh-interval`, by default."""

_OWN_INDEX = """
plugins:
- {type: approx-prefix-cache-producer}
- {type: approx-prefix-cache-producer, name: lru}
"""
"""The second one is an index by llm-d-router's rules."""
_INCUMBENT = (
    POLICIES["linear"]
    .replace("\nplugins:\n", _OWN_INDEX, 1)
    .replace(
        "{type: prefix-cache-scorer}",
        "{type: prefix-cache-scorer, parameters: {prefixMatchInfoProducerName: lru}}",
    )
)
_GUIDE = """
plugins:
- {type: inflight-load-producer}
- {type: approx-prefix-cache-producer}
- {type: approx-prefix-cache-producer, name: lru}
- type: prefix-cache-affinity-filter
  parameters: {affinityThreshold: 0.8, prefixMatchInfoProducerName: lru}
- {type: token-load-scorer}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: prefix-cache-affinity-filter}
  - {pluginRef: token-load-scorer}
  - {pluginRef: max-score-picker}
"""
BASELINES: Mapping[str, Policy] = {
    # Each block of an engine is an entry of 64 tokens in its index: four times the real cache.
    "incumbent": Policy("incumbent", _INCUMBENT, INCUMBENT_SCRAPE_SECONDS, as_reported=True),
    "incumbent-guide": Policy("incumbent-guide", _GUIDE, INCUMBENT_SCRAPE_SECONDS),
}
"""llm-d-router as its chart configures it, and as its newest guide does, with plain LRU indexes."""


def policy_named(text: str) -> Policy:
    """Return the policy that a name or `[LABEL=]PATH` of a configuration file stands for.

    Raises `ConfigError`, also for a file that is no configuration.
    """
    if text in BASELINES:
        return BASELINES[text]
    if text in POLICIES:
        return Policy(text, POLICIES[text])
    label, sign, place = text.partition("=")
    path = Path(place if sign else text)
    if not sign and path.suffix not in {".yaml", ".yml", ".json"}:
        known = (*POLICIES, *BASELINES)
        hint = near(text, known) or f": there are {', '.join(known)}, and files (NAME.yaml)"
        raise ConfigError(f"no policy is named `{text}`{hint}", "--policy")
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"cannot read {path}: {reason}", "--policy") from None
    load(content)
    return Policy(label if sign else path.stem, content)
