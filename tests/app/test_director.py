"""What is tokenized before it is decided on, and what happens when that is not at once."""

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.adapters.tokens.local.local_tokenizer import LocalLimits, LocalTokenizer
from epp.adapters.tokens.local.model_folder import read_folder
from epp.app.director import Service
from epp.config.file import load
from epp.errors import PickerFault
from epp.model.endpoint import Endpoint, EndpointId, Target
from epp.model.events import EndpointUpserted, Listed
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Decision, MustStayReason, Outcome, RequestId, Usage
from epp.policy.scheduler import Scheduler
from epp.protocol.extproc.director import Pending
from epp.protocol.extproc.record import RequestRecord
from tests.adapters.tokens.bodies import chat
from tests.adapters.tokens.folders import byte_level, write

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
async def service(folder, fleet):
    tokenizer = LocalTokenizer(folder, LocalLimits())
    yield serving(fleet, tokenizer)
    await tokenizer.close()


def serving(fleet, tokenizer):
    profile = load("plugins: [{type: least-ttft-picker}]").profile
    scheduler = Scheduler(fleet, profile, lambda _: 0)
    telemetry = Telemetry(
        MetricSources("pool", fleet.loads, fleet.cache_stats, lambda: fleet.indexed_blocks)
    )
    return Service(scheduler, fleet.apply, telemetry, lambda: 1.0, tokenizer)


def tokens_of(folder, lookup):
    (prompt,) = LocalTokenizer(folder, LocalLimits(at_once_chars=1 << 20)).ready(lookup) or ()
    return len(prompt.data) // 4


async def test_what_is_short_is_decided_on_at_once(service, folder):
    lookup = chat("hello")
    decision = service.route(lookup, 1.0)
    assert decision.prompt_tokens == tokens_of(folder, lookup)


async def test_what_is_long_is_decided_on_when_it_is_tokenized(service, folder):
    lookup = chat(LONG)
    record = RequestRecord(id=lookup.id, received_at=0, request=lookup)
    assert service.route(lookup, 1.0) is Pending.PENDING
    decision = await service.decide(record)
    assert isinstance(decision, Decision)
    assert decision.prompt_tokens == tokens_of(folder, lookup)
    assert record.request is not None
    assert record.request.body == b""
    assert service.route(replace(lookup, id=RequestId("again")), 1.0).predicted_cached_tokens > 0


async def test_no_endpoint_is_an_answer_too(folder):
    fleet = Fleet(BlockHasher(b"secret"))
    fleet.apply(Listed(), 0)
    service = serving(fleet, LocalTokenizer(folder, LocalLimits()))
    lookup = chat(LONG)
    assert service.route(lookup, 1.0) is Pending.PENDING
    outcome = await service.decide(RequestRecord(id=lookup.id, received_at=0, request=lookup))
    assert (outcome.status, outcome.reason) == (503, "no-endpoints")


async def test_without_a_tokenizer_nothing_is_pending(fleet):
    service = serving(fleet, None)
    lookup = chat(LONG)
    assert isinstance(service.route(lookup, 1.0), Decision)
    outcome = await service.decide(RequestRecord(id=lookup.id, received_at=0, request=lookup))
    assert isinstance(outcome, PickerFault)


@pytest.mark.parametrize(("counted", "said"), [(None, 0), (0, 0), (1, 1)])
async def test_a_server_that_counts_other_tokens_is_noticed_once(service, counted, said):
    with capture_logs() as logs:
        for _ in range(2):
            lookup = chat("hello")
            decision = service.route(lookup, 1.0)
            usage = counted and Usage(decision.prompt_tokens + counted)
            record = RequestRecord(id=lookup.id, received_at=0, request=lookup, decision=decision)
            record.outcome, record.finished_at = Outcome.COMPLETED, 2.0
            record.usage, record.served = usage or None, Target("10.0.0.1:8000")
            service.close(record)
    assert [entry["event"] for entry in logs].count("tokens.differ") == said


async def test_usage_that_cannot_be_is_said_once_of_an_endpoint(fleet):
    service = serving(fleet, None)
    with capture_logs() as logs:
        for number in range(3):
            usage = Usage(8, 1, doubtful=number > 0)
            record = RequestRecord(
                id=RequestId(str(number)),
                received_at=0.0,
                decision=Decision(endpoints=(ENDPOINT,)),
                outcome=Outcome.COMPLETED,
                usage=usage,
            )
            service.close(record)
    said = [entry for entry in logs if entry["event"] == "usage.doubted"]
    assert [entry["endpoint"] for entry in said] == ["default/a"]


async def test_that_responses_cannot_be_left_is_said_once(fleet):
    service = serving(fleet, None)
    with capture_logs() as logs:
        for number, tie in enumerate((None, MustStayReason.DUPLEX, MustStayReason.DUPLEX)):
            service.close(RequestRecord(id=RequestId(str(number)), received_at=0.0, tie=tie))
    (said,) = [entry for entry in logs if entry["event"] == "observe_responses.impossible"]
    assert "full duplex" in said["reason"]
    assert "response_body_mode: STREAMED" in said["remedy"]


@pytest.mark.parametrize(("status", "suspected"), [(503, True), (502, True), (500, False)])
async def test_an_endpoint_that_a_proxy_cannot_reach_is_suspected(service, status, suspected):
    told: list[EndpointId] = []
    service.suspect = told.append
    decision = service.route(chat("hello"), 1.0)
    record = RequestRecord(id=RequestId("r"), received_at=1.0, decision=decision, status=status)
    record.outcome = Outcome.COMPLETED
    service.close(record)
    assert told == ([ENDPOINT.id] if suspected else [])
