"""One request in a program of its own: what it is sent with, how it ends, and what goes wrong."""

import asyncio
import contextlib
import json

import pytest

from epp.errors import BodyTooLarge, MalformedRequest, NoEndpoints, PickerFault, ShuttingDown
from epp.inprocess import Pick
from epp.model.request import RequestId
from epp.protocol.extproc.record import Outcome
from tests.inprocess.twins import ENDPOINTS, InProcess, Request, settled
from tests.native.built import needs
from tests.plugin_packages import install

CHAT = Request.of(1, 400, stream=True)
LONG = [Request.of(topic, 4000, stream=True) for topic in range(1, 7)]
SMALL, LARGE = 600, 35_000
"""Blocks of a cache: with few, each endpoint has room for one of the long prompts."""


class Moments:
    """A clock that tests set."""

    now = 50.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Moments()


async def made(clock, blocks=LARGE, **options):
    twin = InProcess(clock, **options)
    await twin.load(blocks)
    return twin


def ending(twin, pick):
    (view,) = twin.core.explain(pick.id)
    return view.ending


def served(twin):
    return not twin.core.fleet.in_flight and not twin.context.picks


async def test_what_is_sent_is_what_a_gateway_would_send(clock):
    twin = await made(clock)
    asked = Request.of(1, 3, x_llm_d_inference_fairness_id="team", x_mine="1")
    async with twin.pick(asked) as pick:
        assert pick.url == f"http://{pick.endpoint.target}/v1/chat/completions"
        assert pick.endpoint in ENDPOINTS
        assert pick.body == asked.body
        # The client's fairness id is for the picker; the id of the request is its own.
        kept = {"content-type": "application/json", "x-mine": "1", "x-request-id": pick.id}
        assert pick.headers == kept


async def test_headers_of_the_clients_connection_are_not_sent(clock):
    twin = await made(clock)
    of_connection = {"connection": "keep-alive", "content-length": "9", "expect": "100-continue"}
    of_connection |= {"host": "gateway.example", "keep-alive": "timeout=5", "te": "trailers"}
    of_connection |= {"transfer-encoding": "chunked", "upgrade": "h2c"}
    async with twin.pick(Request.of(1, 3, **of_connection, accept="*/*")) as pick:
        assert pick.headers.keys() - {"x-request-id"} == {"content-type", "accept"}


async def test_the_name_of_a_model_is_rewritten_and_given_back(clock):
    twin = await made(clock)
    asked = Request.of(1, 3, x_llm_d_model_name_rewrite="m-v2")
    async with twin.pick(asked) as pick:
        assert json.loads(pick.body) == json.loads(asked.body) | {"model": "m-v2"}
        assert "content-length" not in pick.headers
        shown = pick.finished(b'{"model": "m-v2", "choices": []}')
    assert json.loads(shown) == {"model": "m", "choices": []}


async def test_leaving_without_a_word_is_an_end_without_a_failure(clock):
    twin = await made(clock)
    async with twin.pick(CHAT) as pick:
        assert len(twin.core.fleet.in_flight) == 1
    assert served(twin)
    assert (ending(twin, pick).outcome, ending(twin, pick).failure) == ("completed", None)


async def test_the_end_is_told_once(clock):
    twin = await made(clock)
    async with twin.pick(CHAT) as pick:
        pick.finished(b"data: [DONE]\n\n")
        pick.finished(b"more")
        pick.failed()
        assert pick.feed(b"more") == b"more"
        pick.first_token()
        pick.usage({"prompt_tokens": 1})
    assert ending(twin, pick).outcome == "completed"
    assert ending(twin, pick).completion_tokens is None


async def test_an_exception_gives_the_request_up_and_blames_nobody(clock):
    twin = await made(clock)
    for _ in range(9):
        with pytest.raises(KeyError):
            async with twin.pick(CHAT) as pick:
                raise KeyError
        assert (ending(twin, pick).outcome, ending(twin, pick).failure) == ("aborted", None)
    assert served(twin)
    assert all(pod.outlier.ejected is None for pod in twin.core.fleet.pods.values())


async def broken_off(_):
    raise ConnectionRefusedError


async def told(pick):
    pick.failed(502)


async def told_after_its_head(pick):
    pick.answered()
    pick.failed()


@pytest.mark.parametrize("end", [broken_off, told, told_after_its_head])
async def test_an_endpoint_that_cannot_be_reached_is_left_out(clock, end):
    twin = await made(clock)
    down, *others = ENDPOINTS
    for topic in range(40):
        with contextlib.suppress(ConnectionError):
            async with twin.pick(Request.of(topic, 60)) as pick:
                if pick.endpoint == down:
                    await end(pick)
        assert ending(twin, pick).failure == ("gateway" if pick.endpoint == down else None)
    pods = twin.core.fleet.pods
    assert pods[down.id].outlier.ejected is not None
    assert not any(pods[each.id].outlier.ejected for each in others)
    assert served(twin)


@pytest.mark.parametrize(
    ("status", "piece", "failure"),
    [
        (200, b"", "gateway"),
        (200, b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n', None),
        (400, b"", None),
        (500, b"", "error"),
    ],
)
async def test_who_breaks_off_has_failed_only_before_its_output(clock, status, piece, failure):
    twin = await made(clock)
    async with twin.pick(CHAT) as pick:
        pick.answered(status)
        pick.feed(piece)
        pick.failed()
    assert (ending(twin, pick).outcome, ending(twin, pick).failure) == ("aborted", failure)
    assert served(twin)


async def test_a_connection_that_breaks_after_the_head_may_be_the_clients(clock):
    twin = await made(clock)
    with contextlib.suppress(ConnectionResetError):
        async with twin.pick(CHAT) as pick:
            pick.answered()
            raise ConnectionResetError
    assert (ending(twin, pick).outcome, ending(twin, pick).failure) == ("aborted", None)
    assert served(twin)


async def test_a_decision_is_waited_for(clock):
    twin = await made(clock, SMALL)
    first = [twin.begin(each) for each in LONG[:3]]
    later = twin.begin(LONG[3])
    await settled()
    assert [twin.picked(each) for each in (*first, later)].count("") == 1
    await first[0][0].__aexit__(None, None, None)
    pick = await later[1]
    assert pick.endpoint == first[0][0].endpoint
    assert pick.decision.waited is not None


async def test_a_task_that_is_cancelled_while_it_waits_leaves_nothing(clock):
    twin = await made(clock, SMALL)
    begun = [twin.begin(each) for each in LONG]
    await settled()
    assert twin.held() == 3
    for _, entering in begun[3:]:
        entering.cancel()
    await settled()
    assert twin.held() == 0
    assert len(twin.context.picks) == len(twin.core.fleet.in_flight) == 3


async def test_a_decision_that_comes_as_its_task_is_cancelled_is_undone(clock):
    twin = await made(clock, SMALL)
    begun = [twin.begin(each) for each in LONG[:4]]
    await settled()
    (_, waiting), (running, _) = begun[3], begun[0]
    running.finished()  # room: the one that waits is released in the next turn
    asyncio.get_running_loop().call_soon(waiting.cancel)  # after that, and before it wakes up
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert begun[3][0]._exchange.record.decision is not None
    assert len(twin.core.fleet.in_flight) == 2


async def test_a_pick_that_waits_when_the_picker_closes_is_refused(clock):
    twin = await made(clock, SMALL)
    begun = [twin.begin(each) for each in LONG[:5]]
    await settled()
    await twin.core.director.stop()
    for each in list(twin.context.picks):
        each.shut()
    for _, entering in begun[3:]:
        with pytest.raises(ShuttingDown):
            await entering
    assert served(twin)
    assert {ending(twin, pick).outcome for pick, _ in begun[:3]} == {Outcome.ABORTED}


@pytest.fixture(scope="module")
def millions():
    return Request.of(1, 600_000)


async def test_a_long_body_is_sent_as_it_is(clock, millions):
    twin = await made(clock)
    async with twin.pick(millions) as pick:
        assert len(pick.body) > 4 << 20
        assert pick.body == millions.body


@needs("epp.protocol.bodies.body_reader", "a body that is read in turns")
async def test_a_long_body_is_read_in_turns_and_may_be_cancelled_between(clock, millions):
    twin = await made(clock)
    pick, entering = twin.begin(millions)
    await asyncio.sleep(0)
    assert not entering.done()
    entering.cancel()
    await asyncio.gather(entering, return_exceptions=True)
    assert served(twin)
    with pytest.raises(RuntimeError, match="no endpoint is picked yet"):
        _ = pick.url


async def test_a_request_that_is_malformed_is_400(clock):
    twin = await made(clock)
    with pytest.raises(MalformedRequest) as raised:
        async with twin.pick(Request("chat", b"{", {}, stream=False)):
            pass
    assert (raised.value.status, raised.value.reason) == (400, "malformed-request")
    assert served(twin)


async def test_a_body_over_the_limit_is_413(clock):
    twin = await made(clock, max_body_bytes=100)
    with pytest.raises(BodyTooLarge) as raised:
        async with twin.pick(CHAT):
            pass
    assert raised.value.status == 413
    assert served(twin)


async def test_without_endpoints_it_is_503(clock):
    twin = await made(clock)
    twin.core.discovery.replace(())
    with pytest.raises(NoEndpoints) as raised:
        async with twin.pick(CHAT):
            pass
    assert (raised.value.status, raised.value.retry_after) == (503, 1)


FAILING = """
from epp.policy.plugins import PluginParameters

class Failing(PluginParameters, frozen=True):
    def score(self, request, candidates):
        raise ZeroDivisionError
"""


async def test_an_error_of_a_plug_in_is_its_cause(clock, tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "failing", FAILING, {"failing": "failing:Failing"})
    twin = await made(clock, config="plugins: [{type: failing}, {type: max-score-picker}]")
    with pytest.raises(PickerFault) as raised:
        async with twin.pick(CHAT):
            pass
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    assert (raised.value.status, raised.value.reason) == (500, "internal")
    assert served(twin)


async def passed_on(pick):
    """What a framework gets to stream, and never begins with if its client has left."""
    async with contextlib.AsyncExitStack() as left:
        left.push_async_exit(pick)
        yield b""


async def test_a_pick_that_is_dropped_is_given_up(clock):
    twin = await made(clock)
    pick = twin.pick(CHAT)
    await pick.__aenter__()
    request, stream = pick.id, passed_on(pick)
    assert len(twin.core.fleet.in_flight) == 1
    del pick, stream
    await settled()
    (view,) = twin.core.explain(request)
    assert view.ending.outcome == "aborted"
    assert served(twin)


async def test_a_pick_is_one_request(clock):
    twin = await made(clock)
    async with twin.pick(CHAT) as pick:
        pass
    with pytest.raises(RuntimeError, match="a pick is one request"):
        await pick.__aenter__()
    assert served(twin)


async def test_numbers_teach_what_bytes_teach(clock):
    told, shown = await made(clock), await made(clock)
    async with told.pick(CHAT) as numbers, shown.pick(CHAT) as body:
        tokens = numbers.decision.prompt_tokens + 5
        *pieces, done = CHAT.answer(tokens, 0)
        clock.now += 0.2
        numbers.first_token()
        body.feed(pieces[0])
        clock.now += 0.5
        for count, piece in enumerate(pieces[1:], 2):
            numbers.generated(count)
            body.feed(piece)
        numbers.usage(
            {
                "prompt_tokens": tokens,
                "completion_tokens": 12,
                "prompt_tokens_details": {"cached_tokens": 0},
            }
        )
        body.feed(done)
    assert ending(told, numbers) == ending(shown, body)
    clock.now += 1
    async with told.pick(CHAT) as after_numbers, shown.pick(CHAT) as after_body:
        (one,), (other,) = after_numbers.explain().profiles, after_body.explain().profiles
        assert one == other
        assert one.candidates[0].cached_tokens > 0
        assert one.prompt_tokens == tokens


class Reported:
    """What clients such as OpenAI's make of an object of JSON."""

    def __init__(self, **fields):
        self.__dict__ |= fields


@pytest.mark.parametrize("tokens", [1.5, "3"])
async def test_tokens_are_counted_in_whole_numbers(clock, tokens):
    twin = await made(clock)
    async with twin.pick(CHAT) as pick:
        with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
            pick.generated(tokens)
    assert served(twin)


async def test_usage_may_be_told_as_an_object(clock):
    twin = await made(clock)
    async with twin.pick(CHAT) as pick:
        details = Reported(cached_tokens=0, audio_tokens=None)
        told = Reported(prompt_tokens=400, completion_tokens=7, prompt_tokens_details=details)
        pick.usage(told)
    assert (ending(twin, pick).prompt_tokens, ending(twin, pick).completion_tokens) == (400, 7)


@pytest.mark.parametrize("said", ["data: 1\n", {"choices": []}, [b"data: 1\n"]])
async def test_a_response_is_told_in_bytes(clock, said):
    twin = await made(clock)
    for tell in (Pick.feed, Pick.finished):
        with pytest.raises(TypeError, match=f"in bytes as they came, not {type(said).__name__}"):
            async with twin.pick(CHAT) as pick:
                tell(pick, said)
        assert ending(twin, pick).outcome == "aborted"
    assert served(twin)


async def test_a_decision_that_is_not_kept_cannot_be_explained(clock):
    twin = await made(clock)
    pick = twin.pick(CHAT)
    with pytest.raises(LookupError, match="not among the decisions that are kept"):
        pick.explain()
    assert twin.core.explain(RequestId("other")) == ()
