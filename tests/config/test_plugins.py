"""Plug-ins are built, started in the order of their needs, and found by their names."""

from typing import Annotated

import msgspec
import pytest

from epp.config.catalogue import PLACES
from epp.config.plugins import Plugins
from epp.config.schema import PluginSpec
from epp.errors import ConfigError
from epp.model.request_events import FirstToken
from epp.policy.effects import mapped_to, without_effect
from epp.policy.plugins import Scorer
from epp.policy.scorers.load import QueueScorer


class Counting:
    """A scorer with state, and the plug-in that it needs."""

    def __init__(self, chance, other):
        self.chance, self.other, self.heard = chance, other, 0

    def score(self, request, candidates):
        return [0.5 for _ in candidates]

    def hear(self, event, now, guessed):
        self.heard += 1


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    other: str = ""
    unread: Annotated[int, without_effect("nobody asks")] = 0


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    other_scorer: str = ""
    group: Group = Group()
    items: list[Group] = []
    old: Annotated[str, mapped_to("something else")] = ""

    def start(self, context):
        if self.old == "bad":
            raise ValueError("`old` is bad")
        name = self.other_scorer or self.group.other
        counting = Counting(context.below(6), context.plugin(name, Scorer, QueueScorer()))
        context.subscribe([FirstToken], counting.hear)
        return counting


class Useless(msgspec.Struct, frozen=True):
    effect = without_effect("it is made up")
    some: int = 0


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(PLACES, "counting", f"{__name__}:Parameters")
    monkeypatch.setitem(PLACES, "useless", f"{__name__}:Useless")


def plugins(*specs):
    return Plugins([PluginSpec(**spec) for spec in specs], lambda n: n - 1)


def counting(name, **parameters):
    return {"type": "counting", "name": name, "parameters": parameters}


def test_a_plug_in_is_started_after_those_that_it_needs():
    started = plugins(counting("a", otherScorer="b"), counting("b", group={"other": "q"}), QUEUE)
    assert list(started) == ["a", "b", "q"]
    assert started["a"].other is started["b"]
    assert started["b"].other is started["q"]
    assert started["a"].chance == 5
    assert len(started.having(Scorer)) == 3
    assert [(each.plugin, each.kinds) for each in started.subscriptions] == [
        ("b", (FirstToken,)),
        ("a", (FirstToken,)),
    ]


QUEUE = {"type": "queue-scorer", "name": "q"}


def test_without_a_name_or_with_that_of_an_unlisted_type_the_default_serves():
    for name in ("", "lora-affinity-scorer"):
        assert plugins(counting("a", otherScorer=name))["a"].other == QueueScorer()


@pytest.mark.parametrize(
    ("specs", "place", "said"),
    [
        (
            [counting("first", otherScorer="frist")],
            "plugins[0].parameters.otherScorer",
            "no plug-in is named `frist`: did you mean `first`",
        ),
        (
            [QUEUE, counting("a", group={"other": "x"})],
            "plugins[1].parameters.group.other",
            "no plug-in is named `x`",
        ),
        (
            [counting("a", otherScorer="p"), {"type": "max-score-picker", "name": "p"}],
            "plugins[0].parameters.otherScorer",
            "`p` is not a scorer",
        ),
        (
            [counting("a", otherScorer="b"), counting("b", otherScorer="a")],
            "plugins[0].parameters",
            "plug-ins depend on each other in a circle: a -> b -> a",
        ),
        ([counting("a", otherScorer="a")], "plugins[0].parameters", "in a circle: a -> a"),
        ([counting("a", old="bad")], "plugins[0].parameters", "`old` is bad"),
    ],
)
def test_references_that_cannot_be_followed_name_their_place(specs, place, said):
    with pytest.raises(ConfigError) as raised:
        plugins(*specs)
    assert raised.value.place == place
    assert said in raised.value.problem


def test_what_is_written_and_not_honoured_is_a_warning():
    built = plugins(
        counting("a", old="x", items=[{"unread": 1}], group={"unread": 2}),
        {"type": "useless", "parameters": {"some": 1}},
    )
    assert sorted(built.warnings) == [
        "a: `group.unread` is without effect here, because nobody asks",
        "a: `items[].unread` is without effect here, because nobody asks",
        "a: `old` is mapped to something else",
        "useless: without effect here, because it is made up",
    ]
    assert plugins(counting("a")).warnings == []


def test_of_a_list_it_is_said_once_what_becomes_of_it():
    assert plugins(counting("a", items=[{"unread": 1}, {"unread": 2}])).warnings == [
        "a: `items[].unread` is without effect here, because nobody asks"
    ]
    tiers = [{"name": "gpu", "weight": 1.0}, {"name": "cpu", "weight": 0.4}]
    index = {"indexerConfig": {"kvCacheBackendConfigs": tiers}}
    (said,) = plugins({"type": "precise-prefix-cache-producer", "parameters": index}).warnings
    assert "`indexerConfig.kvCacheBackendConfigs` is without effect" in said
