"""The data layer: the sources that are polled, and what extractors take from their pages.

A source is polled if `dataLayer.sources` refers to it with an extractor. The metrics page of every
endpoint is polled too, unless `injectDefaults` is false; its list of models, if a plug-in needs it.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import msgspec

from epp.config.data_extractors import CoreMetricsExtractor, ModelsExtractor, NumbersExtractor
from epp.config.data_sources import (
    MetricsDataSource,
    ModelsDataSource,
    ModelsResponder,
    MulticlusterMetricsDataSource,
    PolledSource,
)
from epp.config.plugins import Plugins
from epp.config.schema import DataLayer
from epp.errors import ConfigError
from epp.policy.attributes import CORE_EXTRACTOR
from epp.policy.plugins import Plugin
from epp.policy.producers.endpoint_facts import LabelProducer, TopologyExtractor
from epp.protocol.metrics.attribute_reader import AttributeMetric
from epp.protocol.metrics.metric_names import BUILT_IN_ENGINES, EngineCatalog

METRICS_SOURCE = MetricsDataSource.kind
OLD_CORE_EXTRACTOR = "model-server-protocol-metrics"
"""The name of `core-metrics-extractor` in GIE up to 1.4."""

_EVERY_MODELS = "5s"
"""How often lists of models are read if a file does not name their source."""

_Extractor = CoreMetricsExtractor | NumbersExtractor | ModelsExtractor


class PolledPages(msgspec.Struct, frozen=True, kw_only=True):
    """A source that is polled, and what is taken from its pages."""

    name: str
    """The name of its plug-in."""
    source: PolledSource
    """The plug-in."""
    load: bool = False
    """Whether the load of endpoints is taken; only one source has it."""
    attributes: bool = False
    """Whether only the configured attributes of the load are taken."""
    engines: EngineCatalog = BUILT_IN_ENGINES
    """The engines whose metrics are known."""
    numbers: tuple[AttributeMetric, ...] = ()
    """What becomes attributes."""
    models: bool = False
    """Whether the models that endpoints list are taken."""
    serves_others: bool = False
    """Whether they may serve more models."""
    vital: bool = False
    """Whether an endpoint whose page cannot be read counts as failed."""


class DataLayerSettings(msgspec.Struct, frozen=True):
    """The sources that are polled; `warnings` name parameters without effect.

    With `answers_models` the picker answers `GET /v1/models`.
    """

    pages: tuple[PolledPages, ...]
    warnings: tuple[str, ...] = ()
    answers_models: bool = False


def data_layer(layer: DataLayer, plugins: Plugins) -> DataLayerSettings:
    """Return the sources to poll. Raises `ConfigError` for a combination that cannot work."""
    pages: list[PolledPages] = []
    warnings: list[str] = []
    used: set[str] = set()
    structs = plugins.structs
    for position, wanted in enumerate(layer.sources):
        name, place = wanted.plugin_ref, f"dataLayer.sources[{position}]"
        plugins.refer(name, f"{place}.pluginRef")
        extractors = [each.plugin_ref for each in wanted.extractors]
        for index, extractor in enumerate(extractors):
            plugins.refer(extractor, f"{place}.extractors[{index}].pluginRef")
        used |= {name, *extractors}
        source = structs[name]
        if isinstance(source, _Extractor | TopologyExtractor | LabelProducer | Plugin):
            raise ConfigError(f"`{name}` is not a source of data", f"{place}.pluginRef")
        if isinstance(source, PolledSource):
            polled = _pages(name, source, extractors, structs, place)
            if polled is None:
                warnings.append(f"{place}: `{name}` is not polled: no extractor reads its pages")
            else:
                pages.append(polled)
    for unnamed, plugins_of_it in [*_lists_needed(pages, structs), *_default_pages(layer, structs)]:
        pages.insert(0, unnamed)
        used |= plugins_of_it
    warnings += (f"{each.name}: {said}" for each in pages for said in each.source.warnings())
    pages, more = _one_load(pages)
    warnings += (*more, *_unused(used, structs))
    if not any(each.vital for each in pages):
        warnings.append(
            "no metrics of endpoints are read: their load, engine and cache stay unknown, and an"
            " endpoint that stops answering is not noticed"
        )
    return DataLayerSettings(tuple(pages), tuple(warnings), _answers_models(structs))


def _pages(
    name: str,
    source: PolledSource,
    extractors: Sequence[str],
    plugins: Mapping[str, object],
    place: str,
) -> PolledPages | None:
    """Return a source with what its extractors take; None without extractors."""
    found: list[_Extractor] = []
    for index, extractor in enumerate(extractors):
        plugin, where = plugins[extractor], f"{place}.extractors[{index}].pluginRef"
        if not isinstance(plugin, _Extractor):
            raise ConfigError(
                f"`{extractor}` is not an extractor of pages such as those of `{name}`", where
            )
        if plugin.content != source.content:
            problem = f"`{extractor}` reads {plugin.content}, and `{name}` has {source.content}"
            raise ConfigError(problem, where)
        if isinstance(plugin, CoreMetricsExtractor) and any(
            isinstance(each, CoreMetricsExtractor) for each in found
        ):
            raise ConfigError("this page has several extractors of load; keep one", where)
        found.append(plugin)
    if not found:
        return None
    core = next((each for each in found if isinstance(each, CoreMetricsExtractor)), None)
    listing = [each for each in found if isinstance(each, ModelsExtractor)]
    numbers = (each.metrics() for each in found if isinstance(each, NumbersExtractor))
    return PolledPages(
        name=name,
        source=source,
        load=core is not None,
        engines=core.catalog() if core is not None else BUILT_IN_ENGINES,
        numbers=tuple(metric for metrics in numbers for metric in metrics),
        models=bool(listing),
        serves_others=_serves_others(listing, plugins),
    )


_Unnamed = Iterator[tuple[PolledPages, set[str]]]
"""Pages that no entry of `dataLayer.sources` names, with the names of their plug-ins."""


def _default_pages(layer: DataLayer, plugins: Mapping[str, object]) -> _Unnamed:
    named = (plugins[each.plugin_ref] for each in layer.sources)
    if not layer.inject_defaults or any(isinstance(each, MetricsDataSource) for each in named):
        return
    own = plugins.get(METRICS_SOURCE)
    source = own if isinstance(own, MetricsDataSource) else MetricsDataSource()
    own_names = (each for each in (CORE_EXTRACTOR, OLD_CORE_EXTRACTOR) if each in plugins)
    extractor = next(own_names, CORE_EXTRACTOR)
    core = plugins.get(extractor)
    core = core if isinstance(core, CoreMetricsExtractor) else CoreMetricsExtractor()
    yield (
        PolledPages(name=METRICS_SOURCE, source=source, load=True, engines=core.catalog()),
        {METRICS_SOURCE, extractor},
    )


def _lists_needed(pages: Iterable[PolledPages], plugins: Mapping[str, object]) -> _Unnamed:
    if not _answers_models(plugins) or any(each.models for each in pages):
        return
    sources = ((name, each) for name, each in plugins.items() if isinstance(each, ModelsDataSource))
    name, source = next(sources, (ModelsDataSource.kind, ModelsDataSource(interval=_EVERY_MODELS)))
    readers = {name: each for name, each in plugins.items() if isinstance(each, ModelsExtractor)}
    serves_others = _serves_others(readers.values(), plugins)
    yield (
        PolledPages(name=name, source=source, models=True, serves_others=serves_others),
        {name, *readers},
    )


def _answers_models(plugins: Mapping[str, object]) -> bool:
    return any(isinstance(each, ModelsResponder) for each in plugins.values())


def _serves_others(readers: Iterable[ModelsExtractor], plugins: Mapping[str, object]) -> bool:
    said = [each.refuse_unlisted for each in readers if each.refuse_unlisted is not None]
    return not all(said) if said else _answers_models(plugins)


def _one_load(pages: Sequence[PolledPages]) -> tuple[list[PolledPages], list[str]]:
    """Return the pages with load from the first source that has it, and a warning for others.

    One source decides whether endpoints answer: that one, or else another cluster's.
    """
    first = next((each for each in pages if each.load), None)
    elsewhere = (each for each in pages if isinstance(each.source, MulticlusterMetricsDataSource))
    vital = first or next(elsewhere, None)
    result: list[PolledPages] = []
    warnings: list[str] = []
    for each in pages:
        second = each.load and each is not first
        result.append(
            msgspec.structs.replace(
                each, load=each is first, attributes=second, vital=each is vital
            )
        )
        if second and first is not None:
            warnings.append(
                f"{each.name}: only its custom metrics are read, because load is"
                f" read from `{first.name}`"
            )
    return result, warnings


def _unused(used: Container[str], plugins: Mapping[str, object]) -> Iterator[str]:
    """Yield a warning for each source and extractor that nothing refers to."""
    for name, plugin in plugins.items():
        if name not in used and isinstance(plugin, PolledSource | _Extractor):
            what = "entry" if isinstance(plugin, PolledSource) else "extractor"
            yield f"{name}: it has no effect: no {what} of `dataLayer.sources` refers to it"
