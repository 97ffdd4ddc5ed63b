"""Readers of what sources say of one endpoint each: its load, other numbers, its models."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from epp.model.endpoint import Endpoint
from epp.model.events import AttributesReported, Event, LoadReported, ModelsListed
from epp.protocol.metrics.attribute_reader import AttributeMetric, AttributeReader
from epp.protocol.metrics.capacity import MAX_CAPACITY_TOKENS
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page
from epp.system.logs import Log

_log = Log(__name__)

_MAX_MODELS, _MAX_NAME = 16_384, 1024
"""Models that one endpoint may list, and the characters of a name."""


class Findings(msgspec.Struct, frozen=True):
    """What a page says of an endpoint; `warnings` to log, each returned once.

    `unknown`: the page is of no known engine.
    """

    events: tuple[Event, ...] = ()
    warnings: tuple[str, ...] = ()
    unknown: bool = False


class PageReader(ABC):
    """Reads the pages of one endpoint, one after the other. On a bad page it finds nothing."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    def relabel(self, endpoint: Endpoint) -> None:
        """Set the endpoint with other labels, which may name another engine."""
        self.endpoint = endpoint

    def reset(self) -> None:  # noqa: B027 (what most readers found stays)
        """Handle a server that did not answer: the next page may be of another engine."""

    @abstractmethod
    def steps(self, page: Page, at: float) -> Generator[None, None, Findings]:
        """Read a page scraped at `at` (seconds), pausing after some milliseconds."""


MakeReader = Callable[[Endpoint], PageReader]


class LoadReader(PageReader):
    """Reads loads; with `attributes_only` nothing of them but the attributes.

    It is logged when the engine goes to sleep and when it wakes.
    """

    def __init__(self, endpoint: Endpoint, *, attributes_only: bool = False) -> None:
        super().__init__(endpoint)
        self._reader = MetricsReader(endpoint)
        self._attributes_only = attributes_only
        self._awake = True

    def relabel(self, endpoint: Endpoint) -> None:
        """Set the endpoint; a label may name another engine."""
        super().relabel(endpoint)
        self._reader.relabel(endpoint)

    def reset(self) -> None:
        """Find out the engine again."""
        self._reader.reset_engine()

    def steps(self, page: Page, at: float) -> Generator[None, None, Findings]:
        """Read a page; one without any known metric reports what is kept of the previous load."""
        reading = yield from self._reader.steps(page, at)
        if self._attributes_only:
            events = _of_attributes(self.endpoint, reading.load.attributes)
        else:
            load = reading.load
            events = (LoadReported(self.endpoint.id, load),)
            if load.awake is not self._awake:
                self._awake = load.awake
                told = "endpoint.awake" if load.awake else "endpoint.asleep"
                _log.info(told, endpoint=self.endpoint.id)
        return Findings(events, reading.warnings, self._reader.unknown)


class NumbersReader(PageReader):
    """Reads single numbers into attributes."""

    def __init__(self, endpoint: Endpoint, metrics: Sequence[AttributeMetric]) -> None:
        super().__init__(endpoint)
        self._reader = AttributeReader(metrics)

    def steps(self, page: Page, _at: float) -> Generator[None, None, Findings]:
        """Read a page."""
        found = yield from self._reader.steps(page, self.endpoint.pod or self.endpoint.name)
        return Findings(_of_attributes(self.endpoint, found.attributes), found.warnings)


def _of_attributes(endpoint: Endpoint, found: Mapping[str, float]) -> tuple[Event, ...]:
    return (AttributesReported(endpoint.id, found),) if found else ()


class _Model(msgspec.Struct, frozen=True):
    """A model's card. What servers have beside the name is of any type: OpenAI has none of it."""

    id: str = ""
    root: object = None
    parent: object = None
    owned_by: object = None
    aliases: object = None
    max_model_len: object = None


class _ModelList(msgspec.Struct, frozen=True):
    data: list[_Model]


_decode_models = msgspec.json.Decoder(_ModelList).decode


class ModelsReader(PageReader):
    """Reads OpenAI's list of models, which names adapters beside the models that they are for.

    A page that is not such a list leaves what was listed before. `serves_others`: endpoints may
    serve models that they do not list.
    """

    def __init__(self, endpoint: Endpoint, *, serves_others: bool = False) -> None:
        super().__init__(endpoint)
        self._serves_others = serves_others
        self._listed: ModelsListed | None = None
        self._doubted = False

    def steps(self, page: Page, _at: float) -> Generator[None, None, Findings]:
        """Read a page: an event if it lists other models than the page before."""
        yield
        try:
            cards = _decode_models(page.text).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return self._doubt(f"its list of models cannot be read: {str(error)[:200]}")
        more = [replace(each, id=name) for each in cards for name in _other_names(each)]
        if max(len(cards), len(more)) > _MAX_MODELS:
            return self._doubt(f"it lists more than {_MAX_MODELS} models")
        names = frozenset(each.id for each in (*cards, *more) if 0 < len(each.id) <= _MAX_NAME)
        limits = _max_model_lens((*cards, *more), names)
        aliases = _aliases(cards, names)
        listed = ModelsListed(self.endpoint.id, names, limits, self._serves_others, aliases)
        if listed == self._listed:
            return Findings()
        self._listed, self._doubted = listed, False
        return Findings((listed,))

    def _doubt(self, problem: str) -> Findings:
        repeated, self._doubted = self._doubted, True
        return Findings(warnings=() if repeated else (problem,))


def _other_names(card: _Model) -> Sequence[str]:
    """Return further names by which a server serves a listed model.

    SGLang 0.5 `serving_base.py` `_parse_model_parameter`: `MODEL:ADAPTER`, of which it lists the
    second part. llama.cpp `tools/server`: `aliases`, all names of `--alias`.
    """
    if card.owned_by == "sglang" and isinstance(card.parent, str):
        return [f"{card.parent}:{card.id}"] if card.id else []
    aliases = card.aliases if isinstance(card.aliases, list) else ()
    return [name for name in aliases if isinstance(name, str)]


def _aliases(cards: Sequence[_Model], names: Collection[str]) -> dict[str, str]:
    """Return names that share the cache of another name, each with that one.

    vLLM `show_available_models`: all `--served-model-name`s have one `root` and `max_model_len`.
    Adapters have a `parent`; until 0.6 they have the `root` of their model instead, and no
    `max_model_len`.
    """
    firsts: dict[tuple[str, int], str] = {}
    own = {each.id for each in cards}
    found = {
        name: each.id
        for each in cards
        for name in _other_names(each)
        if name in names and each.id in names and name not in own
    }
    seen: set[str] = set()
    for each in cards:
        root, tokens = each.root, each.max_model_len
        if each.id not in names or each.id in seen or each.parent is not None:
            continue
        seen.add(each.id)
        if isinstance(root, str) and root and type(tokens) is int:
            first = firsts.setdefault((root, tokens), each.id)
            if first != each.id:
                found[each.id] = first
    return found


def _max_model_lens(models: Sequence[_Model], names: Collection[str]) -> dict[str, int]:
    """Return the longest contexts of models, in tokens; an adapter has that of its `parent`.

    vLLM `show_available_models` and SGLang `available_models` have it in the cards of base models
    alone.
    """
    own = {each.id: each.max_model_len for each in models}
    found: dict[str, int] = {}
    for each in models:
        tokens = each.max_model_len
        if tokens is None and isinstance(each.parent, str):
            tokens = own.get(each.parent)
        if each.id in names and type(tokens) is int and 0 < tokens <= MAX_CAPACITY_TOKENS:
            found[each.id] = tokens
    return found


class SeveralReaders(PageReader):
    """Has several readers read the same pages."""

    def __init__(self, endpoint: Endpoint, makers: Sequence[MakeReader]) -> None:
        super().__init__(endpoint)
        self._readers = tuple(make(endpoint) for make in makers)

    def relabel(self, endpoint: Endpoint) -> None:
        """Set the endpoint with other labels."""
        super().relabel(endpoint)
        for each in self._readers:
            each.relabel(endpoint)

    def reset(self) -> None:
        """Handle a server that did not answer."""
        for each in self._readers:
            each.reset()

    def steps(self, page: Page, at: float) -> Generator[None, None, Findings]:
        """Read a page with one after the other."""
        found: list[Findings] = []
        for each in self._readers:
            findings = yield from each.steps(page, at)
            found += (findings,)
        return Findings(
            tuple(event for each in found for event in each.events),
            tuple(warning for each in found for warning in each.warnings),
            any(each.unknown for each in found),
        )
