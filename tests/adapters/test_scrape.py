"""Scrapes of metrics pages: when, of whom, and what is reported of those that fail."""

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from epp.adapters.scrape.failures import EVENTS, is_absent
from epp.adapters.scrape.page_readers import (
    LoadReader,
    ModelsReader,
    NumbersReader,
    SeveralReaders,
)
from epp.adapters.scrape.page_source import ScrapeSettings
from epp.adapters.scrape.scraper import next_due
from epp.model.endpoint import Endpoint
from epp.model.events import LoadReported, ScrapeFailed, ScrapeFailure
from tests.adapters.scraped_pods import DEADLINE, HASTY, SLOW, pods, scraping
from tests.adapters.vllm_page import vllm_page
from tests.processes import no_descriptor_left
from tests.strategies import endpoint
from tests.tasks import until

REFUSED, BROKEN, LATE, NO_PAGE = ScrapeFailure


def reasons(told):
    return [failed.reason for failed in told.of(ScrapeFailed, "a")]


async def test_loads_are_reported_over_one_connection():
    async with pods(1) as (pod,), scraping(pod.endpoint("a")) as (_, told):
        before = time.monotonic()
        load = await told.loads("a", 5)
        assert (load.waiting, load.running, load.kv_usage) == (3, 7, 0.25)
        assert before <= load.at <= time.monotonic()
        assert len(pod.connections) == 1
        assert pod.most_in_flight == 1
        assert pod.headers["Accept-Encoding"] == "identity"


async def test_pods_are_watched_and_unwatched_while_it_runs():
    async with pods(2) as (first, second), scraping() as (scraper, told):
        scraper.watch(first.endpoint("a"))
        await told.loads("a")
        scraper.watch(second.endpoint("b"))
        await told.loads("b")
        scraper.unwatch(first.endpoint("a").id)
        told.events.clear()
        await told.loads("b", 5)
        assert {event.endpoint_id for event in told.events} == {"default/b"}
        await until(lambda: not first.runner.server.connections)
        scraper.unwatch(first.endpoint("a").id)


async def test_one_name_at_another_address_starts_afresh():
    async with pods(2) as (first, second), scraping(first.endpoint("a")) as (scraper, told):
        second.page = b"vllm:num_requests_waiting 50\n"
        await told.loads("a")
        scraper.watch(second.endpoint("a"))
        load = await told.waiting("a", 50)
        assert load.running == 0
        asked = first.requests
        told.events.clear()
        await told.loads("a", 3)
        assert first.requests == asked


async def test_new_labels_change_neither_connection_nor_load():
    async with pods(1) as (pod,), scraping(pod.endpoint("a")) as (scraper, told):
        await told.loads("a")
        scraper.watch(pod.endpoint("a", labels={"llm-d.ai/engine-type": "sglang"}))
        told.events.clear()
        pod.page = b"sglang:num_queue_reqs 50\nvllm:num_requests_waiting 60\n"
        load = await told.waiting("a", 50)
        assert load.running == 7
        assert len(pod.connections) == 1


async def test_a_hung_pod_delays_no_other():
    async with pods(2) as (hung, well):
        hung.hang = True
        async with scraping(hung.endpoint("hung"), well.endpoint("well")) as (_, told):
            await told.loads("well", 3)
            assert hung.most_in_flight == 1


async def test_a_page_that_is_late_is_said_to_be_again_and_again_and_read_when_it_comes():
    patient = ScrapeSettings(interval=0.02, retry=0.02, late=0.02, timeout=DEADLINE)
    async with pods(1) as (pod,):
        pod.hang = True
        with capture_logs() as logs:
            async with scraping(pod.endpoint("a"), settings=patient) as (scraper, told):
                await told.failure("a", 5)
                assert (pod.requests, scraper.errors) == (1, 0)
                pod.page = vllm_page(waiting=6)
                pod.wake()
                await told.waiting("a", 6)
                assert set(reasons(told)) == {LATE}
                assert len(pod.connections) == 1
    assert logs == []


async def test_a_late_poll_that_is_given_up_leaves_no_other_behind():
    hasty = ScrapeSettings(interval=0.02, retry=0.02, late=0.02, timeout=0.1)
    async with pods(1) as (pod,):
        pod.hang = True
        with capture_logs() as logs:
            async with scraping(pod.endpoint("a"), settings=hasty) as (scraper, told):
                await told.until(lambda: scraper.errors >= 3)
                assert set(reasons(told)) == {LATE}
                assert pod.most_in_flight <= 2  # the server hears late of one that is given up
    (late,) = logs
    assert (late["event"], late["error"]) == ("endpoint.metrics_late", "no answer in time")


@pytest.mark.parametrize(
    ("now", "due"), [(5.3, 6.3), (5.31, 6.3), (6.29, 6.3), (6.31, 7.3), (15.5, 16.3)]
)
def test_a_slow_poll_is_followed_by_a_pause_at_its_own_phase(now, due):
    assert next_due(5.3, 1.0, now) == pytest.approx(due)


async def test_a_hung_pod_is_a_failure_in_time():
    async with pods(1) as (hung,):
        hung.hang = True
        async with scraping(hung.endpoint("hung"), settings=HASTY) as (_, told):
            assert (await told.failure("hung")).reason is LATE


async def test_a_refused_connection_is_reported_as_such_and_logged_once():
    async with pods(1) as (pod,):
        with capture_logs() as logs:
            async with scraping(pod.endpoint("a")) as (_, told):
                await told.loads("a")
                await pod.stop()
                told.events.clear()
                event = await told.failure("a", 4)
                assert event.reason is REFUSED
                await pod.start()
                told.events.clear()
                await told.loads("a", 2)
    assert [entry["event"] for entry in logs] == ["endpoint.unreachable", "endpoint.recovered"]
    assert logs[0]["endpoint"] == "default/a"


@pytest.mark.parametrize(
    ("status", "page", "reason", "said"),
    [
        (500, b"oops", "HTTP status 500", NO_PAGE),
        (307, b"", "HTTP status 307", NO_PAGE),
        (404, b"", "HTTP status 404", NO_PAGE),
        (200, b"x" * 200_001, "larger than 200000 bytes", NO_PAGE),
        (502, b"", "HTTP status 502", BROKEN),  # of a proxy before it
        (504, b"", "HTTP status 504", LATE),
    ],
)
async def test_a_response_that_is_no_page_is_a_failure(status, page, reason, said):
    async with pods(1) as (pod,):
        pod.status, pod.page = status, page
        with capture_logs() as logs:
            async with scraping(pod.endpoint("a")) as (_, told):
                event = await told.failure("a", 2)
                assert event.reason is said
    assert [entry["event"] for entry in logs] == [EVENTS[said]]
    assert reason in logs[0]["error"]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:num_requests_waiting 3\n",
            NO_PAGE,
        ),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", NO_PAGE),
        (b"\x15\x03\x01\x00\x02", NO_PAGE),
        (b"", BROKEN),
    ],
    ids=["short", "bad chunk", "tls", "nothing"],
)
async def test_a_broken_answer_is_a_failure(answer, said):
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint("default", "a", "127.0.0.1", port)
        async with scraping(endpoint) as (_, told):
            assert (await told.failure("a")).reason is said


async def test_a_page_without_known_metrics_is_a_sign_of_life():
    async with pods(1) as (pod,), scraping(pod.endpoint("a")) as (_, told):
        await told.loads("a")
        with capture_logs() as logs:
            pod.page = b"<html>"
            told.events.clear()
            load = await told.loads("a", 4)
            assert (load.waiting, load.counted) == (0, False)
            assert told.of(ScrapeFailed, "a") == []
            pod.page = vllm_page(waiting=7)
            told.events.clear()
            load = await told.loads("a", 3)
            assert (load.waiting, load.counted) == (7, True)
    (line,) = logs
    assert (line["event"], line["endpoint"]) == ("endpoint.metrics_unknown", "default/a")


async def test_an_unknown_engine_is_logged_once():
    async with pods(1) as (pod,):
        pod.page = b"foo 1\n"
        with capture_logs() as logs:
            async with scraping(pod.endpoint("a")) as (_, told):
                load = await told.loads("a", 3)
                assert load.waiting == 0
    assert [entry["event"] for entry in logs] == ["endpoint.metrics_unknown"]


async def test_ranks_of_one_server_share_its_page():
    async with pods(1) as (pod,):
        pod.page = vllm_page(waiting=5, engines=3)
        ranks = [pod.endpoint(f"r{rank}", rank=rank) for rank in range(3)]
        async with scraping(*ranks) as (scraper, told):
            for rank in range(3):
                load = await told.loads(f"r{rank}", 4)
                assert (load.waiting, load.ranks, load.num_blocks) == (5, 1, 1024)
            assert pod.most_in_flight == 1
            reports = [event for event in told.events if isinstance(event, LoadReported)]
            assert pod.requests <= len(reports) // 3 + 1
            scraper.unwatch(ranks[0].id)
            told.events.clear()
            await told.loads("r1", 3)
            assert {event.endpoint_id for event in told.events} == {"default/r1", "default/r2"}
            scraper.unwatch(ranks[1].id)
            scraper.unwatch(ranks[2].id)
            scraper.watch(ranks[0])
            told.events.clear()
            await told.loads("r0", 2)
            assert {event.endpoint_id for event in told.events} == {"default/r0"}


FAULT = b"# fault\n"


class Failing(LoadReader):
    """Raises for one rank, on pages that end with `FAULT`."""

    def steps(self, page, at):
        if self.endpoint.rank and page.text.endswith(FAULT):
            raise LookupError("a fault of the reader")
        return (yield from super().steps(page, at))


async def test_a_fault_of_a_reader_is_logged_once_until_a_page_is_read():
    async with pods(1) as (pod,):
        whole = vllm_page(engines=2)
        pod.page, pod.status = whole + FAULT, 503
        ranks = [pod.endpoint(name, rank=rank) for rank, name in enumerate("ab")]
        with capture_logs() as logs:
            async with scraping(*ranks, read=Failing) as (_, told):
                await told.failure("b")
                pod.status = 200
                await told.loads("a", 4)
                pod.page = whole
                await told.loads("b", 2)
                told.events.clear()
                pod.page = whole + FAULT
                await told.failure("b", 3)
    missing, recovered = ["endpoint.metrics_missing"] * 2, ["endpoint.recovered"] * 2
    events = [*missing, "scrape.fault", *recovered, "scrape.fault", *missing]
    assert [entry["event"] for entry in logs] == events


async def test_another_rank_under_the_same_name_starts_afresh():
    async with pods(1) as (pod,), scraping(pod.endpoint("a", rank=0)) as (scraper, told):
        pod.page = vllm_page(engines=2)
        await told.loads("a", 2)
        scraper.watch(pod.endpoint("a", rank=7))
        told.events.clear()
        load = await told.loads("a", 2)
        assert load.num_blocks is None


async def test_an_impossible_value_is_logged_once():
    async with pods(1) as (pod,):
        with capture_logs() as logs:
            async with scraping(pod.endpoint("a")) as (_, told):
                await told.loads("a")
                pod.page = vllm_page().replace(b'num_gpu_blocks="1024"', b'num_gpu_blocks="-5"')
                pod.page = pod.page.replace(b"} 3.0", b"} 1e30")
                told.events.clear()
                load = await told.loads("a", 4)
                assert (load.num_blocks, load.waiting) == (1024, 0)
    assert {entry["event"] for entry in logs} == {"endpoint.metrics_doubted"}
    assert [entry["endpoint"] for entry in logs] == ["default/a"] * 2
    assert sorted(entry["doubt"] for entry in logs) == [
        "vllm:cache_config_info{num_gpu_blocks} is -5, which is ignored",
        "vllm:num_requests_waiting is 1e+30, which is ignored",
    ]


async def test_going_to_sleep_and_waking_are_logged_once_each():
    state = 'vllm:engine_sleep_state{{engine="0",model_name="m",sleep_state="awake"}} {}\n'
    awake, asleep = (vllm_page() + state.format(value).encode() for value in (1, 0))
    async with pods(1) as (pod,), scraping(pod.endpoint("a")) as (_, told):
        with capture_logs() as logs:
            for page, expected in ((awake, True), (asleep, False), (awake, True)):
                pod.page = page
                told.events.clear()
                assert (await told.loads("a", 4)).awake == expected
    assert [(each["event"], each["endpoint"]) for each in logs] == [
        ("endpoint.asleep", "default/a"),
        ("endpoint.awake", "default/a"),
    ]


async def test_a_start_waits_for_the_first_polls_but_not_for_one_that_hangs():
    slow = ScrapeSettings(interval=0.02, timeout=DEADLINE)
    async with pods(2) as (good, bad):
        bad.hang = True
        async with scraping(good.endpoint("a"), settings=slow) as (scraper, told):
            await scraper.polled_once(DEADLINE)
            assert told.of(LoadReported, "a")
            scraper.watch(bad.endpoint("b"))
            await scraper.polled_once(0.05)
            assert not told.of(LoadReported, "b")


async def test_an_endpoint_has_answered_once_its_server_is_there():
    async with pods(3) as (late, without, gone):
        without.status = 404
        await late.stop()
        await gone.stop()
        async with scraping(late.endpoint("a"), without.endpoint("b")) as (scraper, told):
            waits = asyncio.create_task(scraper.answered(late.endpoint("a").id))
            await scraper.answered(without.endpoint("b").id)
            await told.failure("a", 3)
            assert not waits.done()
            await late.start()
            await waits
            assert told.of(LoadReported, "a")
            again = late.endpoint("a", uid="another")
            scraper.watch(late.endpoint("rank", rank=0))
            scraper.watch(again)
            told.events.clear()
            await scraper.answered(again.id)
            assert told.of(LoadReported, "a")
            scraper.unwatch(again.id)
            await scraper.answered(again.id)
            elsewhere = late.endpoint("c", metrics_host=f"127.0.0.1:{gone.port}")
            scraper.watch(elsewhere)
            await scraper.answered(elsewhere.id)
            assert told.of(ScrapeFailed, "c")


@pytest.mark.parametrize(
    ("host", "reason", "absent"),
    [
        ("10.0.0.1:8000", ScrapeFailure.REFUSED, True),
        ("10.0.0.1:8000", ScrapeFailure.BROKEN, True),
        ("10.0.0.1:8000", ScrapeFailure.LATE, False),
        ("10.0.0.1:8000", ScrapeFailure.NO_PAGE, False),
        ("10.0.0.9:9400", ScrapeFailure.BROKEN, False),
    ],
)
def test_only_a_page_at_its_own_port_tells_that_an_endpoint_is_not_there(host, reason, absent):
    endpoint = Endpoint("default", "a", "10.0.0.1", 8000)
    assert is_absent(endpoint, f"http://{host}/metrics", reason) is absent


async def test_no_room_for_a_connection_here_says_nothing_of_an_endpoint():
    async with pods(1) as (pod,), scraping() as (scraper, told):
        with no_descriptor_left():
            scraper.watch(pod.endpoint("a"))
            await told.failure("a", 5)
        assert set(reasons(told)) == {LATE}
        await told.loads("a")


async def test_poll_now_polls_at_once_but_not_at_every_call():
    times = [90.0]
    async with (
        pods(1) as (pod,),
        scraping(pod.endpoint("a"), settings=SLOW, clock=lambda: times[-1]) as (scraper, told),
    ):
        scraper.poll_now(pod.endpoint("a").id)  # one is about to begin
        await told.loads("a")
        polls = scraper._by_endpoint[pod.endpoint("a").id]
        await until(lambda: polls.due is not None)  # the first poll has ended
        for _ in range(3):
            await asyncio.sleep(0)
        assert (pod.requests, polls.due.done()) == (1, False)
        times.append(100.0)
        scraper.poll_now(pod.endpoint("a").id)
        scraper.poll_now(pod.endpoint("b").id)
        await told.loads("a", 2)
        await until(lambda: polls.due is not None)
        for _ in range(50):
            scraper.poll_now(pod.endpoint("a").id)
        assert not polls.due.done()
        assert pod.requests == 2


async def test_a_server_that_fails_repeatedly_is_polled_less_often():
    gone, seldom = endpoint("a", "127.0.0.1", 9), ScrapeSettings(interval=0.02, retry=60.0)
    async with pods(1) as (pod,), scraping(gone, pod.endpoint("b"), settings=seldom) as (_, told):
        await told.loads("b", 20)
        assert reasons(told) == [REFUSED] * 2


@pytest.mark.parametrize("breaks", [1, 2])
async def test_a_broken_connection_is_retried_out_of_turn(breaks):
    async with pods(1) as (pod,), scraping(pod.endpoint("a"), settings=SLOW) as (_, told):
        pod.breaks = breaks
        await told.loads("a")
        assert reasons(told) == [BROKEN] * breaks


async def test_repeated_broken_connections_are_retried_twice_out_of_turn():
    async with pods(1) as (pod,), scraping(pod.endpoint("a"), settings=SLOW) as (scraper, told):
        pod.breaks = 100
        await told.failure("a", 3)
        assert scraper._by_endpoint[pod.endpoint("a").id].retry_at == float("inf")
        assert pod.requests == 3


async def test_an_exiting_server_is_found_gone_out_of_turn():
    async with pods(1) as (pod,), scraping(pod.endpoint("a"), settings=SLOW) as (_, told):
        pod.dying, pod.breaks = True, 1
        await told.failure("a", 2)
        assert reasons(told) == [BROKEN, REFUSED]


async def test_a_page_of_any_size_is_read_in_turns_with_others():
    large = ScrapeSettings(interval=60.0, timeout=DEADLINE)
    async with pods(1) as (pod,):
        lines = (f'vllm:num_requests_waiting{{engine="0",n="{n}"}} 3\n' for n in range(20_000))
        pod.page = "".join(lines).encode()
        turns = 0
        read = asyncio.Event()

        async def count():
            nonlocal turns
            while not read.is_set():
                turns += bool(pod.requests and not pod.in_flight)
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        async with scraping(pod.endpoint("a"), settings=large) as (_, told):
            assert (await told.loads("a")).waiting == 3
        read.set()
        await counting
        assert turns > 20


async def test_an_endpoint_unwatched_while_its_page_is_read_reports_no_more():
    large = ScrapeSettings(interval=60.0, timeout=DEADLINE)
    async with pods(1) as (pod,):
        ranks = [pod.endpoint(f"r{rank}", rank=rank) for rank in range(2)]
        line = 'vllm:num_requests_running{{engine="0",n="{}"}} 3\n'
        pod.page = "".join(line.format(n) for n in range(10_000)).encode() + b"vllm:x 1\n"
        async with scraping(*ranks, settings=large) as (scraper, told):
            async with asyncio.timeout(DEADLINE):
                while not scraper._long_page.locked():
                    await asyncio.sleep(0)
            scraper.unwatch(ranks[0].id)
            await told.loads("r1")
            assert told.of(LoadReported, "r0") == []


async def test_the_page_may_be_elsewhere():
    async with pods(2) as (server, exporter), scraping() as (scraper, told):
        page_of = exporter.endpoint("x").target
        scraper.watch(server.endpoint("a", metrics_host=page_of))
        await told.loads("a", 2)
        assert (server.requests, exporter.requests >= 2) == (0, True)


@pytest.mark.parametrize("kind", [LoadReader, ModelsReader, NumbersReader, SeveralReaders])
def test_a_reader_of_pages_takes_the_new_labels_of_its_endpoint(kind):
    more = {NumbersReader: ((),), SeveralReaders: ((LoadReader, ModelsReader),)}
    reader = kind(endpoint("a"), *more.get(kind, ()))
    relabelled = endpoint("a", labels={"app": "vllm"})
    reader.relabel(relabelled)
    readers = [reader, *getattr(reader, "_readers", ())]
    assert all(each.endpoint is relabelled for each in readers)
