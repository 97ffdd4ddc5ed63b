"""What the gateway conformance suite asks of a picker, through a real gateway."""

import contextlib
import itertools

import pytest_asyncio

from e2e.corridor import CHAT, REASON, SERVER, Plan, chat, corridor
from epp.policy.conformance import SELECTION
from epp.protocol.extproc.debug_headers import CONFORMANCE_SERVED
from tests.adapters.h2c_pods import H2cPod
from tests.adapters.vllm_page import vllm_page
from tests.conformance import FILE

NAMES = ("a", "b", "c")
SUITES = (f"--config-text={FILE}", "--v=4", "--zap-encoder", "json")
PATH = "/primary-gateway-test"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tmp_path_factory):
    plan = Plan(simulators=NAMES, picker_flags=SUITES)
    async with corridor(plan, tmp_path_factory.mktemp("conformance")) as made:
        yield made


def naming(gateway, *names):
    return {SELECTION: ",".join(gateway.targets[name] for name in names)}


async def test_a_request_goes_where_its_header_says_and_the_answer_says_who_served(gateway):
    for name in NAMES * 2:
        answer = await gateway.post(CHAT, chat("hello"), **naming(gateway, name))
        assert (answer.status, answer.headers[SERVER]) == (200, name)
        assert answer.headers[CONFORMANCE_SERVED] == gateway.targets[name]


async def test_of_several_named_endpoints_one_serves(gateway):
    for pair in itertools.combinations(NAMES, 2):
        header = naming(gateway, *pair)
        answers = [await gateway.post(CHAT, chat("hello"), **header) for _ in range(6)]
        assert {answer.status for answer in answers} == {200}
        assert {answer.headers[SERVER] for answer in answers} <= set(pair)


async def test_an_address_names_all_its_ports_and_foreign_ones_are_passed_over(gateway):
    header = {SELECTION: "10.9.9.9,127.0.0.1"}
    answers = [await gateway.post(CHAT, chat("hello"), **header) for _ in range(40)]
    assert {answer.headers[SERVER] for answer in answers} == set(NAMES)


async def test_a_header_that_names_none_of_the_pool_leaves_nobody(gateway):
    answer = await gateway.post(CHAT, chat("hello"), **{SELECTION: "10.9.9.9:3000"})
    assert (answer.status, answer.headers[REASON]) == (503, "filtered-out")


async def test_requests_on_any_path_are_picked_for_with_a_body_and_without(gateway):
    for name in NAMES:
        body = {"model": "conformance-fake-model", "prompt": "Write as if you were a critic"}
        posted = await gateway.post(PATH, body, **naming(gateway, name))
        asked = gateway.client.get(gateway.url + PATH, headers=naming(gateway, name))
        async with asked as got:
            served = [posted.headers[CONFORMANCE_SERVED], got.headers[CONFORMANCE_SERVED]]
        assert served == [gateway.targets[name]] * 2
    assert (await gateway.get(PATH)).headers[CONFORMANCE_SERVED] in gateway.targets.values()


async def over_http2(stream):
    page = (
        vllm_page() if stream.headers[":path"] == "/metrics" else stream.headers[":path"].encode()
    )
    stream.head()
    await stream.body(page)


async def test_a_pool_that_speaks_h2c_is_picked_from_too(start):
    async with contextlib.AsyncExitStack() as stack:
        pods = [await stack.enter_async_context(H2cPod(over_http2).serving()) for _ in NAMES]
        others = tuple(f"127.0.0.1:{pod.port}" for pod in pods)
        plan = Plan(others=others, h2c=True, picker_flags=SUITES)
        gateway = await stack.enter_async_context(start(plan))
        await gateway.metric_becomes(len(NAMES), "llm_d_epp_ready_endpoints")
        for target in others * 2:
            path = "/inferencepool-app-protocol-h2c"
            answer = await gateway.post(path, chat("hello"), **{SELECTION: target})
            assert (answer.status, answer.body) == (200, path.encode())
            assert answer.headers[CONFORMANCE_SERVED] == target


async def test_without_the_file_clients_neither_say_nor_are_told(gateway, start):
    others = tuple(gateway.targets.values())
    header = {SELECTION: "10.9.9.9"}
    async with start(Plan(others=others)) as plain:
        answer = await plain.post(CHAT, chat("hello"), **header)
    assert answer.status == 200
    assert CONFORMANCE_SERVED not in answer.headers
