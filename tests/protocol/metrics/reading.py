"""Pages of one endpoint, as they are read."""

from epp.model.endpoint import UNREPORTED, Endpoint, Load
from epp.protocol.metrics.metrics_reader import MetricsReader
from epp.protocol.metrics.page import Page, PageBefore

PREVIOUS = Load(
    waiting=91,
    running=92,
    counted=True,
    kv_usage=0.93,
    running_adapters=frozenset({"old"}),
    waiting_adapters=frozenset({"older"}),
    max_adapters=9,
    engine="vllm",
    ranks=2,
    block_size=94,
    num_blocks=95,
    spread=1.5,
    caching=False,
    match_unit=98,
    offload_tokens=100,
    cache_queries=101,
    cache_hits=102,
    started_at=96,
    at=97,
)


def reader(previous=UNREPORTED, **endpoint):
    return MetricsReader(Endpoint("default", "a", "10.0.0.1", 8000, **endpoint), previous)


def read(text, at=0.0, previous=UNREPORTED, engine=None, **endpoint):
    """Read one page of an endpoint; `engine` as its label says."""
    labels = {"llm-d.ai/engine-type": engine} if engine else {}
    return reader(previous, labels=labels, **endpoint).read(Page(text), at).load


def read_all(*pages, apart=1.0):
    """Read pages of one server, the same distance apart; return the loads and all warnings."""
    one, before = reader(), PageBefore()
    readings = [one.read(Page(page, before), at * apart) for at, page in enumerate(pages)]
    return [each.load for each in readings], [text for each in readings for text in each.warnings]
