"""Names that clients choose on the metrics page: whose series they get, and how long it becomes."""

import asyncio
import itertools

import aiohttp
import pytest

from epp.adapters.telemetry.http import OperatorServer
from epp.adapters.telemetry.kv_event_counts import kv_event_counts
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from epp.errors import NoEndpoints
from epp.model.caches.kv_event_mirror import KvEventCounts
from epp.model.decision import Decision
from epp.model.endpoint import CacheStats, Endpoint, Load
from epp.protocol.extproc.record import Outcome
from epp.protocol.kvevents.notices import FeedCounts
from tests.adapters.telemetry_page import A, record, request, serve, telemetry, value, values

MAX_PAGE_BYTES = 5_000_000
TOTAL = "llm_d_epp_request_total"
NOT_SHOWN = {"status": None, "usage": None, "first_byte_at": None}


def flows(counted):
    """Give the label values of the flows that were counted: models, fairness id, priority."""
    names = ("model_name", "target_model_name", "fairness_id", "priority")
    return {tuple(dict(pairs)[name] for name in names) for pairs in values(counted, TOTAL)}


def total(page, name):
    """Add up the samples of that name; a page of megabytes takes seconds to parse."""
    lines = page.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name}{{"))


@pytest.mark.parametrize("status", [404, 400, 429, 503, 0, 302])
def test_a_name_that_no_server_answers_is_other(status):
    counted = telemetry()
    for number in range(20):
        asked = request(number, model=f"invented-{number}", fairness_id=f"f{number}")
        serve(counted, record(number, request=asked, status=status, usage=None))
    assert flows(counted) == {("other", "other", "other", "3")}
    assert value(counted, TOTAL) == 20
    picked = values(counted, "llm_d_epp_scheduler_attempts_total")
    assert {dict(pairs)["target_model_name"] for pairs in picked} == {"other"}
    assert sum(picked.values()) == 20


def test_a_name_is_its_own_from_its_first_good_answer_on():
    counted = telemetry()
    for number in range(3):
        serve(counted, record(number))
    assert flows(counted) == {("m", "t", "f", "3")}
    assert value(counted, TOTAL) == 3
    assert value(counted, "llm_d_epp_request_duration_seconds_count") == 3
    assert value(counted, "llm_d_epp_scheduler_attempts_total", target_model_name="t") == 3
    serve(counted, record(4, status=500, usage=None))
    assert value(counted, "llm_d_epp_request_error_total", model_name="m") == 1


def test_a_request_under_way_is_not_counted_twice():
    counted = telemetry()
    first, second = record(1), record(2)
    counted.scheduled(first.request, first.decision, 0.001)
    counted.scheduled(second.request, second.decision, 0.001)
    assert values(counted, TOTAL) == {}
    counted.finished(first)
    assert value(counted, TOTAL, model_name="m") == 1
    counted.finished(second)
    assert value(counted, TOTAL, model_name="m") == 2
    assert sum(values(counted, "llm_d_epp_request_running").values()) == 0
    assert sum(values(counted, "llm_d_epp_scheduler_attempts_total").values()) == 2


RUNNING = "llm_d_epp_request_running"
OF_MODELS = "inference_objective_running_requests"


def of_model(counted, name, model):
    """What an autoscaler asks: `sum(NAME{model_name=MODEL})`, None if there is no such series."""
    found = [v for pairs, v in values(counted, name).items() if ("model_name", model) in pairs]
    return sum(found) if found else None


def test_requests_of_a_model_run_under_its_name_before_any_answer():
    counted = telemetry()
    asked = [request(number, fairness_id=f"f{number}", model="m") for number in range(3)]
    asked += [request(9, model="n", target_model="n")]
    for each in asked:
        counted.scheduled(each, Decision(endpoints=(A,)), 0.0)
    for name in (RUNNING, OF_MODELS):
        assert [of_model(counted, name, model) for model in "mn"] == [3, 1]
        assert of_model(counted, name, "other") == 0
    counted.finished(record(0, request=asked[0], status=503, usage=None))
    assert [of_model(counted, RUNNING, model) for model in "mn"] == [2, 1]
    for each in asked[1:]:
        counted.finished(record(int(each.id), request=each))
    for name in (RUNNING, OF_MODELS):  # a series that was there stays: it says 0
        assert [of_model(counted, name, model) for model in ("m", "n", "other")] == [0, 0, 0]
    counted.scheduled(request(10), Decision(endpoints=(A,)), 0.0)
    assert of_model(counted, RUNNING, "m") == 1


def test_invented_models_that_run_are_other_after_the_first_hundred():
    counted = telemetry()
    for number in range(300):
        asked = request(number, model=f"invented-{number}", fairness_id=f"f{number}")
        counted.scheduled(asked, Decision(endpoints=(A,)), 0.0)
    running = values(counted, RUNNING)
    assert len(running) == 101
    assert (of_model(counted, RUNNING, "other"), sum(running.values())) == (200, 300)
    for number in range(300):
        asked = request(number, model=f"invented-{number}", fairness_id=f"f{number}")
        counted.finished(record(number, request=asked, status=404, usage=None))
    assert sum(values(counted, RUNNING).values()) == 0
    counted.scheduled(request(301), Decision(endpoints=(A,)), 0.0)
    assert [of_model(counted, RUNNING, model) for model in ("m", "other")] == [1, 0]


def test_where_no_response_is_shown_routed_names_are_believed():
    counted = telemetry()
    serve(counted, record(outcome=Outcome.UNOBSERVED, **NOT_SHOWN))
    assert flows(counted) == {("m", "t", "f", "3")}


def test_one_that_hung_up_before_an_answer_proves_nothing():
    counted = telemetry()
    serve(counted, record(outcome=Outcome.ABORTED, **NOT_SHOWN))
    assert flows(counted) == {("other", "other", "other", "3")}


def test_rejections_of_invented_names_are_other():
    counted = telemetry()
    for number in range(50):
        asked = request(number, model=f"m{number}", target_model=f"m{number}")
        rejected = record(number, request=asked, error=NoEndpoints("none"), decision=None)
        rejected.decided_at, rejected.outcome = None, Outcome.REJECTED
        serve(counted, rejected)
    assert value(counted, "llm_d_epp_request_error_total", model_name="other") == 50
    assert value(counted, "llm_d_epp_scheduler_attempts_total", status="failure") == 50


def flood(counted, number, now=100.0, **fields):
    """Serve a good answer to one more name."""
    asked = request(number, **fields)
    times = {"received_at": now - 1, "decided_at": now - 1, "first_byte_at": now - 0.5}
    for streaming in (True, False):
        one = record(number, request=asked, finished_at=now, streaming=streaming, **times)
        serve(counted, one)


def test_fairness_ids_without_bound_take_no_models_place():
    counted = telemetry()
    for number in range(300):
        flood(counted, number, fairness_id=f"tenant-{number}")
    flood(counted, 2_000, model="late", target_model="late", fairness_id="default-flow")
    flood(counted, 2_001, model="later", target_model="later", fairness_id="tenant-2001")
    counts = values(counted, TOTAL)
    named = {tuple(text for _, text in pairs): times for pairs, times in counts.items()}
    assert named["default-flow", "late", "3", "late"] == 2
    assert named["other", "later", "3", "later"] == 2
    assert named["other", "m", "3", "t"] > 500
    assert sum(named.values()) == 604


def test_an_idle_name_gives_its_place_away():
    counted = telemetry()
    for number in range(300):
        flood(counted, number, fairness_id=f"tenant-{number}")
    flood(counted, 2_000, now=500.0, fairness_id="early")
    assert ("m", "t", "early", "3") not in flows(counted)
    running = record(301, request=request(301, fairness_id="tenant-0"))
    counted.scheduled(running.request, running.decision, 0.001)
    flood(counted, 2_001, now=800.0, fairness_id="late")
    assert ("m", "t", "late", "3") in flows(counted)
    assert ("m", "t", "tenant-1", "3") not in flows(counted)
    assert ("m", "t", "tenant-0", "3") in flows(counted)  # a request of it is running
    counted.finished(running)
    assert sum(values(counted, "llm_d_epp_request_running").values()) == 0


@pytest.mark.parametrize("limit", [2, 1000])
def test_fairness_ids_that_are_idle_leave_their_places_to_others(limit):
    counted = Telemetry(MetricSources("pool", list, list, int, fairness_ids=limit))
    for number in range(limit):
        flood(counted, number, fairness_id=f"session-{number}")
    flood(counted, 2_000, now=500.0, fairness_id="tenant")
    assert ("m", "t", "tenant", "3") not in flows(counted)
    flood(counted, 2_001, now=800.0, fairness_id="tenant")
    assert ("m", "t", "tenant", "3") in flows(counted)


def test_picks_of_models_that_are_idle_leave_their_places_to_others():
    now = [0.0]
    counted = Telemetry(MetricSources("pool", list, list, int, clock=lambda: now[0]))
    there = Endpoint("", "", "10.0.0.1", 8000)
    decision = Decision(endpoints=(there,))

    def ask(number, model):
        asked = request(number, model=model, target_model=model, fairness_id="default-flow")
        at = {"received_at": now[0], "decided_at": now[0], "finished_at": now[0]}
        serve(counted, record(number, request=asked, decision=decision, **at))

    def picks():
        found = values(counted, "llm_d_epp_scheduler_attempts_total")
        return {dict(pairs)["target_model_name"]: times for pairs, times in found.items()}

    for number in range(1_500):  # adapters, each for a while
        now[0] += 20
        ask(number, f"adapter-{number}")
        ask(number, "base")
    ask(2_000, "late")
    before = picks()
    assert "late" not in before
    now[0] += 300
    ask(2_001, "base")
    now[0] += 300
    after = picks()
    assert (set(after), after["base"]) == ({"base", "other"}, 1_501)
    assert after["other"] == before["other"]
    ask(2_002, "late")
    assert picks()["late"] == 1


@pytest.mark.parametrize("stays", [True, False])
def test_a_deprecated_counter_does_not_go_back_while_there_is_a_flow_of_its_models(stays):
    names = [
        "inference_objective_request_total",
        "inference_objective_request_duration_seconds_count",
        "inference_objective_request_duration_seconds_sum",
        "inference_objective_request_ttft_seconds_count",
    ]
    counted = telemetry()
    for number in range(300):
        flood(counted, number, fairness_id=f"tenant-{number}")
    if stays:
        flood(counted, 301, now=700.0, fairness_id="tenant-0")
    before = [value(counted, name, model_name="m") for name in names]
    seconds = 1 + 1  # `flood`: two requests, of one second each
    flood(counted, 2_001, now=800.0, fairness_id="late")
    assert ("m", "t", "tenant-1", "3") not in flows(counted)
    after = [value(counted, name, model_name="m") for name in names]
    began = before if stays else [0, 0, 0, 0]
    assert [x - y for x, y in zip(after, began, strict=True)] == [2, 2, seconds, 2]


def pool_of(count):
    """Give telemetry of a pool of that many endpoints, and these."""
    names = [f"qwen3-32b-decode-7c9f8d6b5-{number:05d}-rank-0" for number in range(count)]
    pool = [Endpoint("inference", name, "10.0.0.1", 8000) for name in names]
    sizes = (1_000_000, 250_000, 640_000, 40_000)
    caches = [CacheStats(each, *sizes, 0.75, live=True) for each in pool]
    events = {each.id: FeedCounts(batches=9, gaps=9) for each in pool}
    load = Load(waiting=4, running=10, kv_usage=0.5, at=1)
    view = [(each, load, True) for each in pool]
    return Telemetry(
        MetricSources(
            "pool",
            lambda: view,
            lambda: caches,
            int,
            (lambda: kv_event_counts(events, KvEventCounts()),),
        )
    ), pool


@pytest.mark.parametrize("letter", ["x", "漢", '"', "\\"])
def test_no_client_makes_the_page_longer_than_5_mb(letter):
    counted, pool = pool_of(1_000)
    for number in range(300):
        name = f"{number % 150}-".ljust(64, letter)
        asked = request(
            number,
            model=name,
            target_model=name,
            priority=number % 7,
            fairness_id=f"{number}{name}",
        )
        decision = Decision(endpoints=(pool[number % 1_000],), predicted_cached_tokens=48)
        for streaming in (True, False):
            serve(counted, record(number, request=asked, decision=decision, streaming=streaming))
    page = "".join(counted.page())
    assert 1_000_000 < len(page.encode()) <= MAX_PAGE_BYTES
    assert total(page, TOTAL) == 600
    assert total(page, "llm_d_epp_scheduler_attempts_total") == 600


def test_the_room_of_flows_is_used():
    counted, _ = pool_of(1_000)
    for number in range(100):
        flood(counted, number, model=f"m{number}", target_model=f"m{number}", fairness_id="f")
    page = "".join(counted.page())
    named = [line for line in page.splitlines() if line.startswith(f'{TOTAL}{{model_name="m')]
    assert len(named) >= 15
    assert len(page) >= 0.6 * MAX_PAGE_BYTES


def test_picks_of_endpoints_that_are_gone_are_forgotten_when_room_is_short():
    there: list[tuple[Endpoint, Load, bool]] = []
    counted = Telemetry(MetricSources("pool", lambda: there, list, int))
    stays = Endpoint("prod", "stays", "10.0.0.1", 8000)
    for number in range(5_000):
        endpoint = stays if number % 10 == 0 else Endpoint("prod", f"p{number}", "10.0.0.2", 8000)
        serve(counted, record(number, decision=Decision(endpoints=(endpoint,))))
    there.append((stays, Load(waiting=0, running=0, kv_usage=0.0, at=1), True))
    picked = values(counted, "llm_d_epp_scheduler_attempts_total")
    assert {dict(pairs)["endpoint_name"] for pairs in picked} == {"stays", "other"}
    assert value(counted, "llm_d_epp_scheduler_attempts_total", endpoint_name="stays") == 500


async def test_scrapes_that_come_together_share_one_page():
    written = []

    def index_size():
        written.append(1)
        return len(written)

    server = OperatorServer(
        Telemetry(MetricSources("pool", list, list, index_size)), bool, "127.0.0.1", 0
    )
    await server.start()
    url = f"http://127.0.0.1:{server.port}/metrics"

    async def scrape(session):
        async with session.get(url) as response:
            return await response.read()

    try:
        async with aiohttp.ClientSession() as session:
            pages = await asyncio.gather(*(scrape(session) for _ in range(20)))
    finally:
        await server.stop()
    assert len(written) <= 2  # a second may end in between
    assert len(set(pages)) == len(written)


async def test_a_reader_at_a_unix_socket_gets_a_new_page_each_time(tmp_path):
    numbers = itertools.count(1)
    telemetry = Telemetry(MetricSources("pool", list, list, lambda: next(numbers)))
    server = OperatorServer(telemetry, bool, str(tmp_path / "s"), 0)
    await server.start()
    try:
        async with aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(str(tmp_path / "s"))
        ) as session:
            for number in (1, 2, 3):
                async with session.get("http://localhost/metrics") as response:
                    page = await response.text()
                assert total(page, "llm_d_epp_prefix_indexer_size") == number
    finally:
        await server.stop()


def test_a_page_is_written_in_pieces_that_leave_the_loop_to_others():
    counted, pool = pool_of(1_000)
    for number in range(300):
        name = f"{number}".ljust(64, "x")
        asked = request(number, model=name, target_model=name, fairness_id=name)
        decision = Decision(endpoints=(pool[number % 1_000],))
        serve(counted, record(number, request=asked, decision=decision))
    pieces = list(counted.page())
    assert sum(map(len, pieces)) > 2_000_000
    assert max(piece.count("\n") for piece in pieces) < 600  # 500, and a whole histogram
    heads = [line for line in "".join(pieces).splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads)) < len(pieces)


def test_picks_of_an_endpoint_that_moves_to_another_port_are_counted_there():
    counted = telemetry()
    for number, port in enumerate((8000, 8000, 8000, 9000, 9000, 8000)):
        moved = Endpoint("prod", "a", "10.0.0.1", port)
        serve(counted, record(number, decision=Decision(endpoints=(moved,))))
    picked = values(counted, "llm_d_epp_scheduler_attempts_total")
    assert {dict(pairs)["port"]: times for pairs, times in picked.items()} == {"8000": 4, "9000": 2}


def test_a_tenant_that_is_called_other_is_counted_once():
    counted = telemetry()
    for number in range(3):
        serve(counted, record(number, request=request(number, fairness_id="other")))
    assert flows(counted) == {("m", "t", "other", "3")}
    assert value(counted, TOTAL) == 3
    assert value(counted, "llm_d_epp_scheduler_attempts_total", target_model_name="t") == 3
    assert value(counted, "llm_d_epp_request_running") == 0
