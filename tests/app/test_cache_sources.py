"""Sources of the cache model, and what is logged where one is not available."""

import socket

import msgspec
import pytest
from structlog.testing import capture_logs

from epp.adapters.workers.link import WorkerLink, WorkerStart
from epp.app.cache_sources import (
    build_fleet,
    kv_events_or_none,
    tokenizer_or_none,
    tokenizer_warning,
)
from epp.app.core import PickerCore
from epp.app.options import ServeOptions
from epp.app.pools import sharing
from epp.app.workers.worker import as_worker
from epp.config.file import load
from epp.model.events import EndpointRemoved, EndpointUpserted
from epp.model.kv_changes import CacheCopied
from epp.model.prompts.hashing import BlockHash
from epp.model.request import InferenceRequest, Prompt, RequestId
from epp.system import memory
from tests.adapters.tokens.bodies import chat, ids
from tests.adapters.tokens.folders import byte_level, write
from tests.adapters.tokens.rendering import CHAT, serving
from tests.strategies import endpoint

EVENTS = "plugins: [{type: least-ttft-picker}, {type: precise-prefix-cache-producer}]"


async def at_once(_):
    """Wait for no page."""


def tokens_from(folder):
    producer = f"{{type: token-producer, parameters: {{tokenizer: {folder}, modelName: m}}}}"
    return load(f"plugins: [{{type: least-ttft-picker}}, {producer}]")


def test_without_tokens_or_events_there_is_text_alone():
    settings = load("plugins: [{type: least-ttft-picker}]")
    assert tokenizer_or_none(settings.tokens) is None
    assert kv_events_or_none(settings.kv_events, "", None, print, at_once) is None


def test_a_tokenizer_that_cannot_be_loaded_is_logged_and_prompts_stay_text(tmp_path):
    with capture_logs() as logs:
        assert tokenizer_or_none(tokens_from(tmp_path / "nothing").tokens) is None
    (entry,) = logs
    assert entry["event"] == "tokens.not_loaded"
    assert str(tmp_path / "nothing") in entry["error"]


def test_events_without_tokens_are_refused_with_a_log_line():
    with capture_logs() as logs:
        assert kv_events_or_none(load(EVENTS).kv_events, "", None, print, at_once) is None
    assert [entry["event"] for entry in logs] == ["kv_events.useless"]


async def test_events_with_tokens_are_subscribed_to(tmp_path):
    tokenizer = tokenizer_or_none(tokens_from(write(tmp_path / "m", byte_level())).tokens)
    assert tokenizer is not None
    listener = kv_events_or_none(load(EVENTS).kv_events, "m", tokenizer, print, at_once)
    assert listener is not None
    assert listener.counts() == {}
    await tokenizer.close()


async def test_the_endpoints_of_the_pool_render_prompts():
    settings = load("""plugins:
    - type: least-ttft-picker
    - type: token-producer
      parameters: {modelName: m, vllm: {endpointDiscovery: {}}}""")
    fleet = build_fleet(settings, b"", 5)
    tokenizer = tokenizer_or_none(settings.tokens, fleet)
    assert tokenizer is not None
    asked = chat("hello")
    assert tokenizer.ready(asked) is asked.prompts  # nobody is there
    async with serving() as server:
        server.answers[CHAT] = (200, {"token_ids": [1, 2]})
        port = int(server.url.rpartition(":")[2])
        here = endpoint("pod-0", address="127.0.0.1", port=port)
        fleet.apply(EndpointUpserted(here), 1.0)
        assert tokenizer.ready(asked) is None
        (prompt,) = await tokenizer.tokenize(asked)
        assert ids(prompt) == [1, 2]
        fleet.apply(EndpointRemoved(here.id), 2.0)
        assert tokenizer.ready(asked) is asked.prompts
    await tokenizer.close()


def test_certificates_of_a_render_endpoint_that_cannot_be_read_are_said(tmp_path):
    tls = f"{{url: 'https://render', caCertPath: {tmp_path}/ca.crt}}"
    settings = load(f"plugins: [{{type: token-producer, parameters: {{vllm: {tls}}}}}]")
    assert f"{tmp_path}/ca.crt" in tokenizer_warning(settings.tokens)


@pytest.mark.parametrize("secret", [b"", b"shared"])
def test_pickers_that_share_a_secret_hash_blocks_alike(secret):
    settings = load("plugins: [{type: least-ttft-picker}]")
    request = InferenceRequest(id=RequestId("r"), prompts=(Prompt(b"x" * 4000),))
    one, other = (build_fleet(settings, secret, 5).quote(request, 0).chains[0] for _ in range(2))
    assert (one.hashes == other.hashes) is bool(secret)


@pytest.fixture
def little_memory(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000000")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path)
    monkeypatch.setattr(memory, "_OWN_CGROUP", tmp_path / "none")
    settings = load("plugins: [{type: least-ttft-picker}]")
    return ServeOptions(settings=settings, source=(), hash_secret=b"s" * 16)


def worker_of(options, folder, count):
    """Return the options of one worker of several, as it reads them from its parent."""
    theirs, ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ours:
        start = WorkerStart(number=0, count=count, folder=str(folder), secret=b"")
        theirs.send(b"w" + msgspec.json.encode(start))
        return as_worker(options, WorkerLink(ours))


def blocks_known(options):
    """Return how many blocks a picker knows of an endpoint that is said to hold more."""
    core = PickerCore(options, lambda: None, quiet=True)
    here = endpoint("pod-0")
    core.fleet.apply(EndpointUpserted(here), 1.0)
    many = [BlockHash(number << 32) for number in range(20_000)]
    core.fleet.apply(CacheCopied(here.id, many, [16] * len(many)), 1.0)
    return core.fleet.indexed_blocks


def test_workers_share_what_the_index_may_take(little_memory, tmp_path):
    alone = blocks_known(little_memory)
    shared = blocks_known(worker_of(little_memory, tmp_path, 4))
    assert 0 < alone < 20_000
    assert alone / 5 < shared < alone / 3


def test_and_so_do_the_pools_of_one_process(little_memory, tmp_path):
    known = [blocks_known(each) for each in sharing([little_memory] * 4)]
    assert known == [blocks_known(worker_of(little_memory, tmp_path, 4))] * 4
