"""Reviews of tokens that read metrics, by an API server over HTTP."""

import asyncio
import contextlib

import aiohttp
import pytest
from structlog.testing import capture_logs

from epp.adapters.kube.kube_settings import KubeAccess
from epp.adapters.kube.reviews import AT_ONCE, TokenReviewer
from epp.adapters.telemetry.http import OperatorServer, OperatorSettings
from epp.adapters.telemetry.metrics import MetricSources, Telemetry
from tests.kubeapi import faults
from tests.kubeapi.answers import Answer

ASKS = [
    {
        "apiGroups": ["authentication.k8s.io"],
        "resources": ["tokenreviews"],
        "verbs": ["create"],
    },
    {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    },
]
READS = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


@contextlib.asynccontextmanager
async def operators(api, folder, rules=ASKS):
    """The operators' port of a picker that may ask the API by `rules`; give what asks it."""
    user = {"token": api.token("epp", rules)}
    path = api.kubeconfig(folder / "kubeconfig", user=user)
    reviews = TokenReviewer(KubeAccess(kubeconfig=str(path), environ={}))
    telemetry = Telemetry(MetricSources("pool", list, list, int))
    server = OperatorServer(
        telemetry, bool, "127.0.0.1", 0, OperatorSettings(review=reviews.review)
    )
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

            async def get(path, authorization=None):
                headers = {"Authorization": authorization} if authorization else {}
                async with session.get(path, headers=headers) as response:
                    return response.status

            yield get
    finally:
        await server.stop()
        await reviews.close()


def reviews_of(api):
    return [ask.resource for ask in api.requests]


async def test_a_permitted_user_reads_and_is_reviewed_once(api, tmp_path):
    token = api.token("prometheus", READS)
    async with operators(api, tmp_path) as get:
        assert await get("/metrics", f"Bearer {token}") == 200
        assert await get("/metrics", f"bearer  {token} ") == 200
    assert reviews_of(api) == ["tokenreviews", "subjectaccessreviews"]


async def test_others_are_kept_out_and_health_is_everybodys(api, tmp_path):
    stranger = api.token("stranger")
    async with operators(api, tmp_path) as get:
        assert await get("/metrics") == 401
        assert await get("/metrics", "Bearer nobody's") == 401
        assert await get("/metrics", "Basic dXNlcjpwYXNz") == 401
        assert await get("/metrics", f"Bearer {stranger}") == 403
        assert await get("/healthz") == 200
        assert await get("/readyz") == 503
    assert reviews_of(api) == ["tokenreviews", "tokenreviews", "subjectaccessreviews"]


async def test_an_unreachable_api_server_permits_nothing_and_is_asked_again(api, tmp_path):
    token = api.token("prometheus", READS)
    async with operators(api, tmp_path) as get:
        api.fail(faults.internal(), times=2)
        with capture_logs() as logs:
            assert await get("/metrics", f"Bearer {token}") == 503
            assert await get("/metrics", f"Bearer {token}") == 503
        assert await get("/metrics", f"Bearer {token}") == 200
    assert [each["event"] for each in logs] == ["metrics.not_reviewed"]


GARBAGE = (
    b"",
    b"[]",
    b"\x00\xff",
    b'{"status":' + b'{"x":' * 100_000,
    b'{"status":{"allowed":"\xff","authenticated":true,"user":{"username":"\xff\xfe"}}}',
    b'{"status":{"allowed":%b,"authenticated":"yes"}}' % (b"9" * 5_000),
    b'{"status":{"allowed":true,"authenticated":true,"user":{"username":"%b"}}}' % (b"x" * 2**21),
)


@pytest.mark.parametrize("said", GARBAGE, ids=range(len(GARBAGE)))
@pytest.mark.parametrize("resource", ["tokenreviews", "subjectaccessreviews"])
async def test_an_answer_that_is_no_review_permits_nothing(resource, said, api, tmp_path):
    token = api.token("prometheus", READS)
    async with operators(api, tmp_path) as get:
        api.fail(faults.answering(Answer(code=201, body=said)), resource=resource)
        with capture_logs() as logs:
            assert await get("/metrics", f"Bearer {token}") == 503
        assert await get("/metrics", f"Bearer {token}") == 200
    assert [each["event"] for each in logs] == ["metrics.not_reviewed"]


@pytest.mark.parametrize("missing", [0, 1])
async def test_a_missing_rule_is_named(missing, api, tmp_path):
    """After another failure, too, but once."""
    token = api.token("prometheus", READS)
    rules = [rule for number, rule in enumerate(ASKS) if number != missing]
    api.fail(faults.internal())
    with capture_logs() as logs:
        async with operators(api, tmp_path, rules) as get:
            for _ in range(3):
                assert await get("/metrics", f"Bearer {token}") == 503
    _, said = logs
    assert ASKS[missing]["resources"][0] in said["missing_rules"]


async def test_without_access_to_an_api_server_nobody_reads(api, tmp_path):
    token = api.token("prometheus", READS)
    async with operators(api, tmp_path) as get:
        (tmp_path / "kubeconfig").unlink()
        assert await get("/metrics", f"Bearer {token}") == 503
        api.kubeconfig(tmp_path / "kubeconfig", user={"token": api.token("epp", ASKS)})
        assert await get("/metrics", f"Bearer {token}") == 200


async def test_few_tokens_are_reviewed_at_a_time(api, tmp_path):
    strangers, most = 100, 0
    user = {"token": api.token("epp", ASKS)}
    path = api.kubeconfig(tmp_path / "kubeconfig", user=user)
    reviews = TokenReviewer(KubeAccess(kubeconfig=str(path), environ={}))

    async def counted(_):
        nonlocal most
        await asyncio.sleep(0)
        most = max(most, len(reviews_of(api)) - sum(each.done() for each in asked))

    api.fail(counted, resource="tokenreviews", times=strangers)
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(reviews.review(str(n), "/metrics")) for n in range(strangers)]
    await reviews.close()
    assert {each.result() for each in asked} == {401}
    assert 1 < most <= AT_ONCE
