"""Telemetry of an invented pool, records of exchanges, and its page as Prometheus parses it."""

from math import isfinite

from prometheus_client.parser import text_string_to_metric_families

from epp.adapters.telemetry import families
from epp.adapters.telemetry.kv_event_counts import kv_event_counts
from epp.adapters.telemetry.loop_delay import LoopDelay
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.adapters.telemetry.pool_gauges import affinity_metrics, media_metrics, rollout_metrics
from epp.adapters.telemetry.series import expose
from epp.app.plugin_timing import PluginTimes
from epp.config.file import load
from epp.model.caches.kv_event_mirror import KvEventCounts
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import UNREPORTED, CacheStats, Endpoint, Load
from epp.model.events import EndpointUpserted
from epp.model.request import InferenceRequest, Prompt, RequestId, Usage
from epp.policy.plugins import PickContext
from epp.policy.producers.predicted_latency import PredictedLatency
from epp.protocol.extproc.record import Outcome
from epp.protocol.kvevents.notices import FeedCounts
from tests.records import record_of

A = Endpoint("prod", "a", "10.0.0.1", 8000)
B = Endpoint("prod", "b", "10.0.0.2", 8000)
C = Endpoint("prod", "c", "10.0.0.3", 8000)
POOL = [
    (A, Load(waiting=4, running=10, kv_usage=0.5, at=1), True),
    (B, Load(waiting=2, running=20, kv_usage=0.25, at=1), True),
    (C, UNREPORTED, False),
]
BELIEFS = [
    CacheStats(A, 1000, 250, 900, 40, 0.75, live=True),
    CacheStats(B, 1_000_000, 0, 0, 0, 1.0, live=False),
]


def times():
    """Plug-ins that were timed once."""
    scheduling = load("plugins: [{type: max-score-picker}]").scheduling
    timer, picker = PluginTimes(scheduling.plugin_names), scheduling.profile.picker
    timer("Picker", picker, picker.pick, [], [0.5], PickContext(lambda _: 0, 0))
    return timer


def media_caches():
    """A producer that has seen two requests with a picture each, both sent to one pod."""
    found = load("plugins: [{type: mm-embeddings-cache-producer, name: mm}]").media_caches
    found["mm"].follow(EndpointUpserted(A), 0.0, False)
    picture = Prompt(bytes(range(16)) * 40)
    for number in "12":
        asked = InferenceRequest(id=RequestId(number), prompts=(picture,), multimodal=True)
        found["mm"].committed(asked, Decision(endpoints=(A,)), 0.0)
    return found


def rollouts():
    """A screener that has seen two pods of one revision, and refused a request."""
    text = """
plugins:
- type: disaggregatedset-rollout-screener
  name: roll
  parameters:
    scope: {labelSelector: set=s}
    revisionGating: {mode: sum, requireRoles: {values: [prefill, decode]}}
    headerSelectors: [{name: zone, headerName: x-zone, labelKey: zone, mode: strict}]
- {type: random-picker}
"""
    found = load(text).rollouts
    for role in ("prefill", "decode"):
        prefix = "disaggregatedset.x-k8s.io"
        labels = {"set": "s", f"{prefix}/revision": "r1", f"{prefix}/role": role}
        pod = Endpoint("prod", role, "10.0.1.1", 8000, labels=labels)
        found["roll"].on_event(EndpointUpserted(pod), 0.0, False)
        asked = InferenceRequest(id=RequestId("1"), headers={"x-zone": "moon"})
        found["roll"].screen(asked, [Candidate(endpoint=pod, load=UNREPORTED)])
    return found


def affinity_filters():
    """A filter that had one endpoint to filter, and then two that have cached nothing."""
    text = "plugins: [{type: prefix-cache-affinity-filter, name: sticky}]"
    found = load(text).affinity_filters
    for asked in ([A], [A, B]):
        pods = [Candidate(endpoint=each, load=UNREPORTED) for each in asked]
        found["sticky"].filter(InferenceRequest(id=RequestId("1")), pods)
    return found


def telemetry(pool=POOL, under_way=lambda _: False, fresh=lambda load: isfinite(load.at)):
    events = FeedCounts(
        batches=9, duplicates=20, unreadable=400, gaps=1, disconnects=2, unreachable=3
    )
    return Telemetry(
        MetricSources(
            "pool",
            lambda: pool,
            lambda: BELIEFS,
            lambda: 77,
            (
                LoopDelay().collect,
                times().collect,
                lambda: expose(families.TEXT_INSTEAD, [(("media",), 4)]),
                lambda: expose(families.POLL_ERRORS, [(("source",), 1)]),
                lambda: expose(families.EXTRACT_ERRORS, [(("source", "extractor"), 2)]),
                lambda: kv_event_counts({A.id: events}, KvEventCounts(stored=8, removed=5)),
                lambda: rollout_metrics(rollouts()),
                lambda: media_metrics(media_caches()),
                lambda: affinity_metrics(affinity_filters()),
            ),
            under_way=under_way,
            former_names=True,
            in_flight=lambda: [(RequestId("9"), A, 40)],
            fresh=fresh,
            streams=lambda: 3,
            predicted_latency=("latency", PredictedLatency(1.0)),
            profile_handler=("pd", "pd-profile-handler"),
            precise_producer="precise",
        )
    )


DECIDED = Decision(
    endpoints=(A,),
    profile="decode",
    disaggregation="decode-only",
    prompt_tokens=96,
    predicted_cached_tokens=48,
    predicted_ttft=0.3,
    stages=(Decision(endpoints=(B,), profile="prefill"),),
)


def request(number=1, **fields):
    defaults = {"model": "m", "target_model": "t", "fairness_id": "f", "priority": 3}
    return InferenceRequest(id=RequestId(str(number)), **{**defaults, **fields})


def record(number=1, **fields):
    defaults = {
        "request": request(number),
        "decision": DECIDED,
        "outcome": Outcome.COMPLETED,
        "received_at": 100.0,
        "decided_at": 100.003,
        "first_byte_at": 100.5,
        "finished_at": 102.5,
        "status": 200,
        "streaming": True,
        "request_bytes": 500,
        "response_bytes": 9,
        "response_chunks": 5,
        "usage": Usage(prompt_tokens=100, completion_tokens=11, cached_tokens=32),
    }
    return record_of(id=RequestId(str(number)), **{**defaults, **fields})


def serve(counted, one):
    """Take one exchange through what the picker tells of it."""
    if one.decision is not None:
        counted.scheduled(one.request, one.decision, 0.0003)
    counted.finished(one)


def read(counted, *, buckets=True):
    """Give the families of a page by name; most of its lines are buckets, with a count's labels."""
    lines = "".join(counted.page()).split("\n")
    if not buckets:
        lines = [each for each in lines if not each.partition("{")[0].endswith("_bucket")]
    return {each.name: each for each in text_string_to_metric_families("\n".join(lines))}


def samples(families, name):
    """Give the samples of that exact name: labels (as sorted pairs) to value."""
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def values(counted, name):
    """Give what `samples` gives of a page, of which no other lines are parsed."""
    starts = (f"{name} ", f"{name}{{")
    lines = [each for each in "".join(counted.page()).split("\n") if each.startswith(starts)]
    return samples(text_string_to_metric_families("\n".join([*lines, ""])), name)


def value(counted, name, /, **labels):
    """Give the one sample of that name which has these labels among others."""
    wanted = set(labels.items())
    (found,) = [v for pairs, v in values(counted, name).items() if wanted <= set(pairs)]
    return found
