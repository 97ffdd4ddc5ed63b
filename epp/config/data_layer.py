"""The data layer: the sources that are polled, and what extractors take from their pages.

A source is polled if `dataLayer.sources` refers to it with an extractor. The metrics page of every
endpoint is polled too, unless `injectDefaults` is false.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from epp.config.data_extractors import (
    CORE_EXTRACTOR,
    CoreMetricsExtractor,
    ModelsExtractor,
    NumbersExtractor,
)
from epp.config.data_sources import (
    MetricsDataSource,
    MulticlusterMetricsDataSource,
    PolledSource,
)
from epp.errors import ConfigError
from epp.policy.endpoint_facts import LabelProducer, TopologyExtractor
from epp.policy.plugins import Plugin
from epp.protocol.metrics.attribute_reader import AttributeMetric
from epp.protocol.metrics.metric_names import BUILT_IN_ENGINES, EngineCatalog

METRICS_SOURCE = MetricsDataSource.kind
OLD_CORE_EXTRACTOR = "model-server-protocol-metrics"
"""The name of `core-metrics-extractor` in GIE up to 1.4."""

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
    """Whether, of the load, only the configured attributes are."""
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
    """The sources that are polled; `warnings` name parameters without effect."""

    pages: tuple[PolledPages, ...]
    warnings: tuple[str, ...] = ()


Wanted = Sequence[tuple[str, Sequence[str]]]
"""The names in `dataLayer.sources`: each source with its extractors."""


def data_layer(
    wanted: Wanted, plugins: Mapping[str, object], *, inject_defaults: bool
) -> DataLayerSettings:
    """Return the sources to poll. Raises `ConfigError` for a combination that cannot work.

    `plugins` has all configured plug-ins by their names.
    """
    pages: list[PolledPages] = []
    warnings: list[str] = []
    for position, (name, extractors) in enumerate(wanted):
        place = f"dataLayer.sources[{position}]"
        _check_source(name, plugins[name], place)
        source = plugins[name]
        if isinstance(source, PolledSource):
            warnings += (f"{name}: {each}" for each in source.warnings())
            polled = _pages(name, source, extractors, plugins, place)
            if polled is None:
                warnings.append(f"{place}: `{name}` is not polled: no extractor reads its pages")
            else:
                pages.append(polled)
    if inject_defaults and not any(
        isinstance(plugins[name], MetricsDataSource) for name, _ in wanted
    ):
        name, source = METRICS_SOURCE, plugins.get(METRICS_SOURCE)
        source = source if isinstance(source, MetricsDataSource) else MetricsDataSource()
        warnings += (f"{name}: {each}" for each in source.warnings())
        pages.insert(0, _default_pages(source, plugins))
        wanted = (*wanted, (name, (_default_extractor(plugins),)))
    pages, more = _one_load(pages)
    warnings += (*more, *_unused(wanted, plugins))
    if not any(each.vital for each in pages):
        warnings.append(
            "no metrics of endpoints are read: their load, engine and cache stay unknown, and an"
            " endpoint that stops answering is not noticed"
        )
    return DataLayerSettings(tuple(pages), tuple(warnings))


def _check_source(name: str, source: object, place: str) -> None:
    if isinstance(source, _Extractor | TopologyExtractor | LabelProducer | Plugin):
        raise ConfigError(f"`{name}` is not a source of data", f"{place}.pluginRef")


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
        serves_others=any(not each.refuse_unlisted for each in listing),
        vital=core is not None or isinstance(source, MulticlusterMetricsDataSource),
    )


def _default_extractor(plugins: Mapping[str, object]) -> str:
    """Return the name of the extractor that llm-d-router uses if the file names none."""
    own = plugins.get(CORE_EXTRACTOR), plugins.get(OLD_CORE_EXTRACTOR)
    return OLD_CORE_EXTRACTOR if own[0] is None and own[1] is not None else CORE_EXTRACTOR


def _default_pages(source: MetricsDataSource, plugins: Mapping[str, object]) -> PolledPages:
    core = plugins.get(_default_extractor(plugins))
    core = core if isinstance(core, CoreMetricsExtractor) else CoreMetricsExtractor()
    return PolledPages(
        name=METRICS_SOURCE, source=source, load=True, engines=core.catalog(), vital=True
    )


def _one_load(pages: Sequence[PolledPages]) -> tuple[list[PolledPages], list[str]]:
    """Return the pages with load from the first source that has it, and a warning for others.

    One source decides whether endpoints answer: that one, or else another cluster's.
    """
    first = next((each for each in pages if each.load), None)
    vital = first or next((each for each in pages if each.vital), None)
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


def _unused(wanted: Wanted, plugins: Mapping[str, object]) -> Iterator[str]:
    """Yield a warning for each source and extractor that nothing refers to."""
    sources = {name for name, _ in wanted}
    extractors = {name for _, names in wanted for name in names}
    for name, plugin in plugins.items():
        if isinstance(plugin, PolledSource) and name not in sources:
            yield f"{name}: it has no effect: no entry of `dataLayer.sources` refers to it"
        if isinstance(plugin, _Extractor) and name not in extractors:
            yield f"{name}: it has no effect: no extractor of `dataLayer.sources` refers to it"
