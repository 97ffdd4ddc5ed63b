"""Plug-ins of users, by entry points."""

import sys

import msgspec
import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.policy.scorers.load import QueueScorer

PLUG_IN = '''
from typing import ClassVar

import msgspec

class Shortest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Prefers short names."""

    scale_length: float = 10.0

    def score(self, request, candidates):
        return [1 - len(each.endpoint.name) / self.scale_length for each in candidates]

class First(msgspec.Struct, frozen=True):
    def pick(self, candidates, totals, context):
        return [0]

class Blind(First, frozen=True):
    uses_totals: ClassVar[bool] = False

class Plain:
    pass
'''


@pytest.fixture
def users_plugins(tmp_path, monkeypatch):
    info = tmp_path / "users_plugins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: users-plugins\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[warmpick.plugins]\n"
        "shortest-scorer = users_plugins_for_tests:Shortest\n"
        "first-picker = users_plugins_for_tests:First\n"
        "blind-picker = users_plugins_for_tests:Blind\n"
        "plain = users_plugins_for_tests:Plain\n"
        "missing = users_plugins_for_tests:Missing\n"
        "nowhere = no_such_module_at_all:Missing\n"
        "queue-scorer = no_such_module_at_all:Missing\n"
        "decode-filter = users_plugins_for_tests:Shortest\n"
    )
    (tmp_path / "users_plugins_for_tests.py").write_text(PLUG_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("users_plugins_for_tests", None)


@pytest.mark.usefixtures("users_plugins")
def test_a_users_plug_in_is_used_by_its_name():
    settings = load("plugins: [{type: shortest-scorer, parameters: {scaleLength: 20}}]")
    (scorer,) = settings.profile.scorers
    assert type(scorer.scorer).__name__ == "Shortest"
    assert msgspec.to_builtins(scorer.scorer) == {"scaleLength": 20}
    assert settings.effective.plugins[0].parameters == {"scaleLength": 20.0}


@pytest.mark.usefixtures("users_plugins")
def test_a_users_picker_compares_totals_unless_it_says_otherwise():
    assert load("plugins: [{type: queue-scorer}, {type: first-picker}]").warnings == ()
    with pytest.raises(ConfigError, match="`Blind` ignores scores"):
        load("plugins: [{type: queue-scorer}, {type: blind-picker}]")


@pytest.mark.usefixtures("users_plugins")
def test_a_users_plug_in_has_a_name_of_its_own():
    (scorer,) = load("plugins: [{type: queue-scorer}]").profile.scorers
    assert isinstance(scorer.scorer, QueueScorer)


@pytest.mark.usefixtures("users_plugins")
@pytest.mark.parametrize(
    ("spec", "place", "said"),
    [
        ("type: plain", "plugins[0].type", "is no msgspec.Struct"),
        ("type: missing", "plugins[0].type", "cannot be imported: AttributeError"),
        ("type: nowhere", "plugins[0].type", "cannot be imported: ModuleNotFoundError"),
        (
            "type: shortest-scorer, parameters: {scaleLen: 1}",
            "plugins[0].parameters",
            "did you mean `scaleLength`",
        ),
    ],
)
def test_a_plug_in_that_cannot_be_used_is_an_error(spec, place, said):
    with pytest.raises(ConfigError, match="plugins") as raised:
        load(f"plugins: [{{{spec}}}]")
    assert raised.value.place == place
    assert said in str(raised.value)
