"""Plug-ins of users, by entry points."""

import signal
import sys

import msgspec
import pytest

from epp.config.file import load
from epp.errors import ConfigError
from epp.model.events import Listed
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.policy.scheduler import Scheduler
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

class Misspelt(msgspec.Struct, frozen=True):
    def scores(self, request, candidates):
        return [1.0 for _ in candidates]

class Short(msgspec.Struct, frozen=True):
    def score(self, candidates):
        return [1.0 for _ in candidates]

class Async(msgspec.Struct, frozen=True):
    def start(self, context):
        return AsyncPicker()

class AsyncPicker:
    async def pick(self, candidates, totals, context):
        return [0]

class Own(msgspec.Struct, frozen=True):
    def admit(self, request, candidates):
        return self.filter(request)

    def filter(self, request):
        return None

class AsyncAdmitter(msgspec.Struct, frozen=True):
    async def admit(self, request, candidates):
        raise LookupError

class AsyncObserver(msgspec.Struct, frozen=True):
    def start(self, context):
        return Observer()

class Observer:
    async def committed(self, request, decision, now):
        pass

class ShortProcessor(msgspec.Struct, frozen=True):
    def process_request(self):
        pass

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
        "misspelt = users_plugins_for_tests:Misspelt\n"
        "short = users_plugins_for_tests:Short\n"
        "async = users_plugins_for_tests:Async\n"
        "async-admitter = users_plugins_for_tests:AsyncAdmitter\n"
        "async-observer = users_plugins_for_tests:AsyncObserver\n"
        "short-processor = users_plugins_for_tests:ShortProcessor\n"
        "own-filter = users_plugins_for_tests:Own\n"
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
def test_methods_of_a_plug_in_that_no_profile_names_are_its_own():
    listed = "plugins: [{type: own-filter}, {type: queue-scorer}, {type: short}]"
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: %s}]}]"
    loaded = load(f"{listed}\n{profile % 'queue-scorer'}")
    assert [type(each).__name__ for each in loaded.scheduling.admitters] == ["Own"]
    with pytest.raises(ConfigError, match=r"`filter` cannot be called with \(request, candidates"):
        load(f"{listed}\n{profile % 'own-filter'}")


@pytest.mark.usefixtures("users_plugins")
def test_a_picker_that_a_profile_without_one_takes_is_checked():
    listed = "plugins: [{type: queue-scorer}, {type: async}]"
    profile = "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]"
    with pytest.raises(ConfigError, match="`pick` is async"):
        load(f"{listed}\n{profile}")


@pytest.mark.usefixtures("users_plugins")
def test_a_users_plug_in_has_a_name_of_its_own():
    (scorer,) = load("plugins: [{type: queue-scorer}]").profile.scorers
    assert isinstance(scorer.scorer, QueueScorer)


@pytest.mark.usefixtures("users_plugins")
@pytest.mark.parametrize(
    ("spec", "place", "said"),
    [
        ("type: plain", "plugins[0].type", "is not a msgspec.Struct"),
        ("type: missing", "plugins[0].type", "cannot be imported: AttributeError"),
        ("type: nowhere", "plugins[0].type", "cannot be imported: ModuleNotFoundError"),
        ("type: short", "plugins[0].type", "`score` cannot be called with (request, candidates)"),
        ("type: async", "plugins[0].type", "`pick` is async, and the picker does not await it"),
        ("type: async-admitter", "plugins[0].type", "`admit` is async, and the picker does not"),
        ("type: async-observer", "plugins[0].type", "`committed` is async, and the picker does"),
        ("type: short-processor", "plugins[0].type", "`process_request` cannot be called with ("),
        ("type: shortest-score", "plugins[0].type", "did you mean `shortest-scorer`"),
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


@pytest.mark.usefixtures("users_plugins")
def test_a_plug_in_that_nothing_calls_is_a_warning():
    assert load("plugins: [{type: shortest-scorer}]").warnings == ()
    (warning,) = load("plugins: [{type: misspelt}]").warnings
    assert warning.startswith("plugins[0].type: `misspelt` has no method that the picker calls")


FAULTY = """
import msgspec

{on_import}

class Faulty(msgspec.Struct, frozen=True):
    a: object = {default}

    def __post_init__(self):
        {made}

    def start(self, context):
        {start}
        context.subscribe([Listed], listen)
        return self

    def score(self, request, candidates):
        return [0.0] * len(candidates)
"""
RAISES = (
    'raise RuntimeError("x" * 10**6)',
    "raise SystemExit",
    "raise SystemExit(7)",
    "raise KeyboardInterrupt",
    "raise GeneratorExit",
    "raise BaseException",
    "raise RecursionError",
    "raise type('Odd', (Exception,), dict(__repr__=lambda _: 1 / 0))",
    "import sys; sys.exit('gone')",
    "1 / 0",
)


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Return what makes a plug-in named `faulty` that raises somewhere."""
    info = tmp_path / "faulty_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[warmpick.plugins]\nfaulty = faulty_plugin_for_tests:Faulty\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(**code):
        parts = {"on_import": "", "default": 1, "made": "pass", "start": "pass", **code}
        source = FAULTY.format(**parts)
        source = source.replace(
            "import msgspec", "import msgspec\nfrom epp.model.events import Listed"
        )
        listen = f"def listen(*_):\n    {parts.get('heard', 'pass')}\n"
        (tmp_path / "faulty_plugin_for_tests.py").write_text(source + "\n" + listen)

    yield make
    sys.modules.pop("faulty_plugin_for_tests", None)


@pytest.mark.parametrize("raises", RAISES)
@pytest.mark.parametrize(
    ("where", "place"),
    [
        ("on_import", "plugins[1].type"),
        ("made", "plugins[1].parameters"),
        ("start", "plugins[1].parameters"),
    ],
)
def test_whatever_a_plug_in_raises_at_the_start_is_one_error_with_its_place(
    faulty, where, place, raises
):
    faulty(**{where: raises})
    with pytest.raises(ConfigError) as raised:
        load("plugins: [{type: queue-scorer}, {type: faulty}]")
    assert raised.value.place == place
    assert len(str(raised.value)) < 2000
    assert "\n" not in str(raised.value)


def test_parameters_that_cannot_be_written_out_are_an_error(faulty):
    faulty(default="object()")
    with pytest.raises(ConfigError, match="does not take its parameters"):
        load("plugins: [{type: faulty}]")


@pytest.mark.parametrize("where", ["on_import", "made", "start"])
def test_ctrl_c_within_a_plug_in_is_no_error_of_it(faulty, where):
    faulty(**{where: "import os, signal; os.kill(os.getpid(), signal.SIGINT)"})
    # What is started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            load("plugins: [{type: faulty}]")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("raises", ["raise SystemExit", "raise KeyboardInterrupt"])
def test_a_listener_cannot_end_the_process(faulty, raises):
    faulty(heard=raises)
    settings = load("plugins: [{type: faulty}]")
    faults = list[str]()
    fleet = Fleet(BlockHasher(b"secret"))
    Scheduler(
        fleet, settings.scheduling, lambda _: 0, on_fault=lambda source, _: faults.append(source)
    )
    fleet.apply(Listed(), 0.0)
    assert faults == ["plugin/faulty"]


@pytest.mark.parametrize("word", ["x" * 500_000, "queue-scorer" * 40_000, "\x1b" * 10**5])
@pytest.mark.parametrize(
    "text",
    [
        "plugins: [{{type: {}}}]",
        "plugins: [{{type: queue-scorer, parameters: {{{}: 1}}}}]",
        "plugins: [{{type: prefix-cache-scorer, parameters: {{prefixMatchInfoProducerName: {}}}}}]",
        "featureGates: [{}]",
        "apiVersion: {}",
        "kind: {}",
        "{}: 1",
        "plugins: [{{type: smg-power-of-two-picker, parameters: {{loadMetric: {}}}}}]",
        "plugins: [{{type: token-producer, parameters: {{patience: {}}}}}]",
        "plugins: [{{type: queue-scorer, name: {0}}}, {{type: queue-scorer, name: {0}}}]",
        "schedulingProfiles: [{{name: a, plugins: [{{pluginRef: {}}}]}}]",
    ],
)
def test_errors_repeat_little_of_a_long_word(text, word):
    with pytest.raises(ConfigError) as raised:
        load(text.format('"' + word.replace("\x1b", "\\e") + '"'))
    assert len(str(raised.value)) < 2000


def test_many_plug_ins_take_as_many_steps_each():
    """Twice as many plug-ins, each of which needs another, take about twice as many calls."""

    def calls(count):
        many = [f"{{type: approx-prefix-cache-producer, name: p{n}}}" for n in range(count)]
        many += [
            f"{{type: d2lpm-scorer, name: d{n}, parameters: {{prefixMatchInfoProducerName: p{n}}}}}"
            for n in range(count)
        ]
        counted = 0

        def count_calls(_frame, event, _argument):
            nonlocal counted
            counted += event in {"call", "c_call"}

        before = sys.getprofile()
        sys.setprofile(count_calls)
        try:
            load(f"plugins: [{', '.join(many)}]")
        finally:
            sys.setprofile(before)
        return counted

    calls(1)
    assert calls(400) < 2.2 * calls(200)
