"""What is tokenized before it is decided on, and what happens when that is not at once."""

import asyncio

import pytest
from structlog.testing import capture_logs

from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.adapters.tokens.local.local_tokenizer import LocalLimits, LocalTokenizer
from epp.adapters.tokens.local.model_folder import read_folder
from epp.app.director import PickerDirector
from epp.config.file import load
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, EndpointId, Target
from epp.model.events import EndpointUpserted, Listed
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import RequestId, Usage
from epp.model.request_events import FirstToken
from epp.policy.flow.flow_control import FlowControl
from epp.policy.flow.settings import FlowSettings
from epp.policy.pickers import MaxScorePicker
from epp.policy.profile import Profile, Scheduling, WeightedScorer
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.record import MustStayReason, Outcome
from epp.values import replaced
from tests.adapters.tokens.bodies import chat
from tests.adapters.tokens.folders import byte_level, write
from tests.policy.flow.flow_rig import FlowRig
from tests.records import record_of

LONG = "the keeper of the lighthouse counted 42 boats\n" * 100
ENDPOINT = Endpoint("default", "a", "10.0.0.1", 8000)


@pytest.fixture
def folder(tmp_path):
    return read_folder(write(tmp_path / "m", byte_level()))


@pytest.fixture
def fleet():
    fleet = Fleet(BlockHasher(b"secret"))
    fleet.apply(EndpointUpserted(ENDPOINT), 0)
    fleet.apply(Listed(), 0)
    return fleet


@pytest.fixture
async def director(folder, fleet):
    tokenizer = LocalTokenizer(folder, LocalLimits())
    yield directing(fleet, tokenizer)
    await tokenizer.close()


LEAST_TTFT = load("plugins: [{type: least-ttft-picker}]").scheduling


def directing(fleet, tokenizer, poll_now=lambda _: None, scheduling=LEAST_TTFT, rig=None, **limits):
    scheduler = Scheduler(fleet, scheduling, lambda _: 0)
    telemetry = Telemetry(
        MetricSources("pool", fleet.loads, fleet.cache_stats, lambda: fleet.indexed_blocks)
    )
    return PickerDirector(
        FlowControl(scheduler, fleet, FlowSettings()) if rig is None else rig.flow,
        fleet.apply,
        telemetry,
        lambda: 1.0 if rig is None else rig.now,
        tokenizer,
        poll_now=poll_now,
        **limits,
    )


def tokens_of(folder, lookup):
    (prompt,) = LocalTokenizer(folder, LocalLimits(at_once_chars=1 << 20)).ready(lookup) or ()
    return len(prompt.data) // 4


async def test_a_short_prompt_is_decided_on_at_once(director, folder):
    lookup = chat("hello")
    decision = director.route(lookup, 1.0)
    assert decision.prompt_tokens == tokens_of(folder, lookup)


async def outcome(director, lookup):
    """The outcome of a decision that is pending."""
    pending = director.route(lookup, 1.0)
    assert isinstance(pending, PendingDecision)
    made = asyncio.get_running_loop().create_future()
    pending.when_decided(made.set_result)
    return await asyncio.wait_for(made, 10)


async def test_a_long_prompt_is_decided_on_when_it_is_tokenized(director, folder):
    lookup = chat(LONG)
    decision = await outcome(director, lookup)
    assert isinstance(decision, Decision)
    assert decision.prompt_tokens == tokens_of(folder, lookup)
    again = director.route(replaced(lookup, id=RequestId("again")), 1.0)
    assert again.predicted_cached_tokens > 0


@pytest.mark.parametrize("leaves", [False, True])
async def test_a_prompt_that_was_tokenized_waits_for_room_until_its_client_leaves(folder, leaves):
    rig = FlowRig(pods=1)
    rig.come("first", 20_000)
    tokenizer = LocalTokenizer(folder, LocalLimits())
    director = directing(rig.fleet, tokenizer, rig=rig)
    pending = director.route(chat(LONG), rig.now)
    made = asyncio.get_running_loop().create_future()
    pending.when_decided(made.set_result)
    async with asyncio.timeout(10):
        while not rig.flow.line.requests:
            await asyncio.sleep(0)
        if leaves:
            pending.cancel()
        else:
            rig.apply(FirstToken(RequestId("first")))
            assert isinstance(await made, Decision)
    assert rig.flow.line.requests == 0
    await director.stop()
    await tokenizer.close()


async def test_no_endpoints_is_an_outcome(folder):
    fleet = Fleet(BlockHasher(b"secret"))
    fleet.apply(Listed(), 0)
    error = await outcome(directing(fleet, LocalTokenizer(folder, LocalLimits())), chat(LONG))
    assert (error.status, error.reason) == (503, "no-endpoints")


class Stuck:
    """A tokenizer that takes as long as whoever waits has time."""

    def __init__(self):
        self.asked = asyncio.Event()
        self.ended = asyncio.Event()

    def ready(self, _):
        return None

    async def tokenize(self, _):
        self.asked.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.ended.set()


async def test_a_prompt_that_takes_too_long_is_refused(fleet):
    tokenizer = Stuck()
    error = await outcome(directing(fleet, tokenizer, tokenize_timeout=0.01), chat(LONG))
    assert (error.status, error.reason, error.retry_after) == (429, "decision-timeout", 1)
    assert tokenizer.ended.is_set()


async def test_a_cancellation_ends_the_tokenization(fleet):
    tokenizer, heard = Stuck(), list[object]()
    pending = directing(fleet, tokenizer).route(chat(LONG), 1.0)
    pending.when_decided(heard.append)
    await tokenizer.asked.wait()
    pending.cancel()
    await asyncio.wait_for(tokenizer.ended.wait(), 10)
    assert heard == []


async def test_stop_ends_the_tokenization(fleet):
    tokenizer = Stuck()
    director = directing(fleet, tokenizer)
    director.route(chat(LONG), 1.0)
    await tokenizer.asked.wait()
    await director.stop()
    assert tokenizer.ended.is_set()


async def test_a_tokenizer_that_fails_is_the_pickers_fault(fleet):
    class Broken(Stuck):
        async def tokenize(self, _):
            raise ZeroDivisionError

    assert isinstance(await outcome(directing(fleet, Broken()), chat(LONG)), ZeroDivisionError)


async def test_without_a_tokenizer_nothing_is_pending(fleet):
    assert isinstance(directing(fleet, None).route(chat(LONG), 1.0), Decision)


async def test_a_decision_is_logged_with_the_terms_of_its_prediction(fleet):
    with capture_logs() as logs:
        decision = directing(fleet, None).route(chat(LONG), 1.0)
    (said,) = [entry for entry in logs if entry["event"] == "exchange.decided"]
    (shown,) = said["candidates"]
    terms = ("queued_prefill_ms", "prefill_ms", "decode_ms")
    assert sum(shown[each] for each in terms) == pytest.approx(1e3 * decision.predicted_ttft, 0.01)
    assert shown["prefill_ms"] > 0


@pytest.mark.parametrize(("counted", "said"), [(None, 0), (0, 0), (1, 1)])
async def test_different_token_counts_are_logged_once(director, counted, said):
    with capture_logs() as logs:
        for _ in range(2):
            lookup = chat("hello")
            decision = director.route(lookup, 1.0)
            usage = counted and Usage(decision.prompt_tokens + counted)
            record = record_of(id=lookup.id, received_at=0, request=lookup, decision=decision)
            record.outcome, record.finished_at = Outcome.COMPLETED, 2.0
            record.usage, record.served = usage or None, Target("10.0.0.1:8000")
            director.exchange_ended(record)
    assert [entry["event"] for entry in logs].count("tokens.differ") == said


async def test_impossible_usage_is_logged_once_for_each_endpoint(fleet):
    director = directing(fleet, None)
    with capture_logs() as logs:
        for number, served in enumerate((None, None, None, ENDPOINT.target, "10.0.0.2:8000")):
            if number >= 3:  # another one of its name
                director.forget(ENDPOINT.id)
            usage = Usage(8, 1, implausible=number > 0)
            record = record_of(
                id=RequestId(str(number)),
                received_at=0.0,
                decision=Decision(endpoints=(ENDPOINT,)),
                outcome=Outcome.COMPLETED,
                usage=usage,
                served=served and Target(served),
            )
            director.exchange_ended(record)
    said = [entry for entry in logs if entry["event"] == "usage.doubted"]
    assert [entry["endpoint"] for entry in said] == ["default/a"] * 2


async def test_streams_that_must_stay_open_are_logged_once(fleet):
    director = directing(fleet, None)
    with capture_logs() as logs:
        for number, reason in enumerate((None, MustStayReason.DUPLEX, MustStayReason.DUPLEX)):
            director.exchange_ended(
                record_of(id=RequestId(str(number)), received_at=0.0, must_stay=reason)
            )
    (said,) = [entry for entry in logs if entry["event"] == "observe_responses.impossible"]
    assert "full duplex" in said["reason"]
    assert "response_body_mode: STREAMED" in said["remedy"]


@pytest.mark.parametrize(("status", "polled"), [(503, True), (502, True), (500, False)])
async def test_an_endpoint_that_a_proxy_cannot_reach_is_polled_at_once(fleet, status, polled):
    told: list[EndpointId] = []
    director = directing(fleet, None, told.append)
    decision = director.route(chat("hello"), 1.0)
    record = record_of(id=RequestId("r"), received_at=1.0, decision=decision, status=status)
    record.outcome = Outcome.COMPLETED
    director.exchange_ended(record)
    assert told == ([ENDPOINT.id] if polled else [])


async def test_the_endpoints_that_were_to_compute_its_stages_are_polled_as_well(fleet):
    told: list[EndpointId] = []
    director = directing(fleet, None, told.append)
    prefill, encode = [Endpoint("default", name, "10.0.0.9", 8000) for name in "pe"]
    decision = replaced(director.route(chat("hello"), 1.0), prefill=prefill, encode=encode)
    record = record_of(id=RequestId("r"), received_at=1.0, decision=decision, status=503)
    record.outcome = Outcome.COMPLETED
    director.exchange_ended(record)
    director.exchange_ended(record_of(status=503, outcome=Outcome.ABORTED))  # of the proxy alone
    assert told == [ENDPOINT.id, prefill.id, encode.id]


class Constant:
    """Scores each candidate alike."""

    def __init__(self, value):
        self.value = value

    def score(self, request, candidates):
        return [self.value] * len(candidates)


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), GeneratorExit(), SystemExit(1)])
async def test_a_plug_in_cannot_end_what_waits_for_the_tokenizer(fleet, folder, raised):
    class Raising(Constant):
        def score(self, request, candidates):
            raise raised

    profile = Profile("p", (), (WeightedScorer("own", 1.0, Raising(0)),), MaxScorePicker())
    tokenizer = LocalTokenizer(folder, LocalLimits())
    director = directing(fleet, tokenizer, scheduling=Scheduling(profiles={"p": profile}))
    assert await outcome(director, chat(LONG)) is raised


async def test_a_scorer_outside_its_range_is_logged_once(fleet):
    values = {"fine": 1.0, "percent": 70.0, "empty": float("nan")}
    scorers = tuple(WeightedScorer(name, 1.0, Constant(values[name])) for name in values)
    profile = Profile("p", (), scorers, MaxScorePicker())
    director = directing(fleet, None, scheduling=Scheduling(profiles={"p": profile}))
    with capture_logs() as logs:
        totals = [director.route(chat("hello"), 1.0).totals for _ in range(3)]
    assert totals == [[2.0]] * 3
    said = [entry for entry in logs if entry["event"] != "exchange.decided"]
    assert [(entry["event"], entry["plugin"]) for entry in said] == [
        ("plugin.score_out_of_range", "percent"),
        ("plugin.score_out_of_range", "empty"),
    ]
    assert said[0]["score"] == 70.0


class Read(list[float]):
    """A scorer of the same scores each time, which counts how often they are gone through."""

    times = 0

    def __iter__(self):
        self.times += 1
        return super().__iter__()

    def score(self, request, candidates):
        return self


async def test_scores_out_of_range_are_looked_at_no_more_once_that_was_logged(fleet):
    fine, percent = both = Read([1.0]), Read([70.0])
    scorers = tuple(WeightedScorer(f"{each[0]}", 1.0, each) for each in both)
    profile = Profile("p", (), scorers, MaxScorePicker())
    director = directing(fleet, None, scheduling=Scheduling(profiles={"p": profile}))
    director.route(chat("hello"), 1.0)
    fine.times = percent.times = 0
    director.route(chat("hello"), 1.0)
    assert percent.times == fine.times > 0
