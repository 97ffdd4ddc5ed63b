"""Where a prompt's blocks are copied from, by llm-d-router's rule."""

import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import Load
from epp.policy.attribute_sources import FROM_FLEET
from epp.policy.disaggregation.kv_source import KV_SOURCE, P2pSource, fnv32a
from epp.policy.scheduler import Scheduler
from tests.model.rig import LONG, Rig
from tests.policy.routing import routed
from tests.strategies import endpoint, request


def pool(*cached, waiting=()):
    """Candidates a, b, ... that have so many of 1000 tokens cached."""
    queues = (*waiting, *[0] * len(cached))
    return [
        Candidate(
            endpoint=endpoint("abcdef"[number], f"10.0.0.{number + 1}"),
            load=Load(waiting=queues[number], block_size=16),
            prompt_tokens=1000,
            cached_tokens=tokens,
        )
        for number, tokens in enumerate(cached)
    ]


def source(candidates, to=0, least=1, name="a", prefill=None):
    """The name of the source for a request that goes to a candidate, with prefill at another."""
    stages: tuple[Decision, ...] = ()
    if prefill is not None:
        stages = (Decision(endpoints=(candidates[prefill].endpoint,), profile="prefill"),)
    decision = Decision(endpoints=(candidates[to].endpoint,), profile="decode", stages=stages)
    plugin = P2pSource(FROM_FLEET, least, "prefill")
    told = dict(plugin.request_headers(request(name), decision, candidates))
    names = {each.endpoint.target: each.endpoint.name for each in candidates}
    return names[told[KV_SOURCE]] if told else ""


@pytest.mark.parametrize(
    ("cached", "more", "named"),
    [
        ((0, 0), {}, ""),
        ((0, 160), {}, "b"),
        ((160, 0), {}, ""),  # the one that computes has the most
        ((160, 160), {}, ""),
        ((144, 160), {"least": 16}, "b"),  # 160 - 144 = 16
        ((144, 160), {"least": 17}, ""),
        ((0, 160, 480), {}, "c"),  # 160 + 16 < 480
        ((0, 160, 480), {"to": 2}, ""),
        ((0, 160, 480), {"to": 2, "prefill": 0}, "c"),  # prefill computes, and has none
        ((0, 160, 480), {"to": 0, "prefill": 2}, ""),
    ],
)
def test_a_source_has_more_than_the_endpoint_that_computes(cached, more, named):
    assert source(pool(*cached), **more) == named


def test_the_hash_is_fnv_1a():
    # The vectors of the FNV specification (draft-eastlake-fnv, appendix C).
    assert [fnv32a(each) for each in (b"", b"a", b"foobar")] == [0x811C9DC5, 0xE40C292C, 0xBF9CF968]


@pytest.mark.parametrize(
    ("waiting", "name", "named"),
    [
        # 0xe40c292c / 2^32 = 0.891: of weights 1, 1 it is in the second half.
        ((0, 0, 0), "a", "c"),
        # Weights 1 and 1/9: 0.891 * 10/9 = 0.990 < 1.
        ((0, 0, 8), "a", "b"),
        # Weights 1/9 and 1: 0.990 >= 0.111.
        ((0, 8, 0), "a", "c"),
        # 0xbf9cf968 / 2^32 = 0.748; weights 1 and 1/2: 1.122 >= 1.
        ((0, 0, 1), "foobar", "c"),
        # Weights 1 and 1/3: 0.748 * 4/3 = 0.998 < 1.
        ((0, 0, 2), "foobar", "b"),
    ],
)
def test_near_the_most_the_request_draws_by_waiting_queues(waiting, name, named):
    assert source(pool(0, 464, 480, waiting=waiting), name=name) == named


def test_of_several_near_the_most_each_may_be_drawn():
    # 0x811c9dc5, 0xbf9cf968 and 0xe40c292c of 2^32 are in the third, the third and the last.
    near = pool(0, 480, 480, 480, 480, waiting=(0,) * 5)
    assert [source(near, name=name) for name in ("", "foobar", "a")] == ["d", "d", "e"]


CONFIG = """
plugins:
- {{type: p2p-source-producer, parameters: {{{}}}}}
- {{type: least-request-picker}}
"""


def test_the_header_goes_out_with_the_request():
    rig = Rig(2)
    rig.send("pod-0", "r0", LONG)
    scheduler = Scheduler(rig.fleet, load(CONFIG.format("")).scheduling, lambda _: 0)
    decision = routed(scheduler, request("r1", LONG), rig.now)
    assert decision.endpoint.name == "pod-1"
    assert decision.headers == ((KV_SOURCE, "10.0.0.1:8000"),)


@pytest.mark.parametrize(
    ("parameters", "place", "said"),
    [
        ("minCachedTokenDelta: 0", ".minCachedTokenDelta", "a whole number of at least 1"),
        ("minCachedTokenDelta: x", ".minCachedTokenDelta", "a whole number is expected, not text"),
        ("minCachedTokens: 1", "", "did you mean `minCachedTokenDelta`"),
        ("prefixMatchInfoProducerName: nobody", ".prefixMatchInfoProducerName", "`nobody`"),
    ],
)
def test_what_it_cannot_be(parameters, place, said):
    with pytest.raises(ConfigError) as raised:
        load(CONFIG.format(parameters))
    assert raised.value.place == f"plugins[0].parameters{place}"
    assert said in raised.value.problem
