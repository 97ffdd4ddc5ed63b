"""Which API a path belongs to."""

import pytest

from epp.model.request import Api
from epp.protocol.bodies.apis import (
    ANTHROPIC,
    DEFAULT_APIS,
    OPENAI,
    SGLANG_HTTP,
    VERTEX,
    VLLM_GRPC,
    VLLM_HTTP,
    ApiTable,
)

ALL = ApiTable((OPENAI, ANTHROPIC, VLLM_HTTP, SGLANG_HTTP, VLLM_GRPC, VERTEX), passthrough=False)
ENGINE = "/vllm.grpc.engine.VllmEngine"
PREDICTION = "/google.cloud.aiplatform.v1beta1.PredictionService"
MODEL = "/v1/projects/p/locations/l/endpoints/e"
PATHS = [
    ("/v1/chat/completions", Api.CHAT),
    ("/v1/chat/completions/?a=b", Api.CHAT),
    ("/v1/projects/p/chat/completions", Api.CHAT),
    ("/openai/v1/completions", Api.COMPLETIONS),
    ("completions", Api.COMPLETIONS),
    ("/v1/chat/completions/render", Api.CHAT_RENDER),
    ("/v1/completions/render", Api.COMPLETIONS_RENDER),
    ("/v1/embeddings", Api.EMBEDDINGS),
    ("/v1/responses", Api.RESPONSES),
    ("/v1/conversations//", Api.CONVERSATIONS),
    ("/v1/images/generations", Api.IMAGES),
    ("/v1/messages", Api.MESSAGES),
    ("/v1/messages?beta=true", Api.MESSAGES),
    ("/v1/messages/count_tokens", Api.COUNT_TOKENS),
    ("/inference/v1/generate", Api.GENERATE),
    ("/" + "x" * 10_000 + "/completions", Api.COMPLETIONS),
]
MORE = [
    ("/generate", Api.SGLANG_GENERATE),
    (f"{ENGINE}/Generate", Api.GRPC_GENERATE),
    (f"{ENGINE}/Embed", Api.GRPC_EMBED),
    (f"{PREDICTION}/ChatCompletions", Api.VERTEX_CHAT),
    (f"{PREDICTION}/RawPredict", Api.VERTEX_RAW),
    (f"{PREDICTION}/StreamRawPredict", Api.VERTEX_RAW),
    ("/PredictionService/RawPredict", Api.VERTEX_RAW),
    (f"{MODEL}:rawPredict", Api.RAW_PREDICT),
    (f"{MODEL}:streamRawPredict", Api.RAW_PREDICT),
]
UNREAD = [
    "/v1/responses/resp_1",
    "/v1/models",
    "/mycompletions",
    "/xmessages",
    "/regenerate",
    f"{ENGINE}/HealthCheck",
    "",
]


@pytest.mark.parametrize(("path", "api"), PATHS)
def test_paths_of_the_default_parsers(path, api):
    assert DEFAULT_APIS.api_of(path) is api
    assert ALL.api_of(path) is api


@pytest.mark.parametrize(("path", "api"), MORE)
def test_paths_of_the_others(path, api):
    assert ALL.api_of(path) is api
    assert DEFAULT_APIS.api_of(path) is Api.OTHER


@pytest.mark.parametrize("path", UNREAD)
def test_paths_that_no_parser_claims(path):
    assert DEFAULT_APIS.api_of(path) is Api.OTHER
    assert ALL.api_of(path) is None


def test_with_passthrough_alone_every_path_passes_through():
    assert ApiTable((), passthrough=True).api_of("/v1/chat/completions") is Api.OTHER
