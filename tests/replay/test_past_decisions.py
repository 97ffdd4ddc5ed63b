"""Decisions of a recording: those of a picker that saw the same, and what is told of others."""

import gzip
import random

import msgspec
import pytest

from epp.cli.main import main
from epp.config.file import POLICIES, load
from epp.model.endpoint import Endpoint, Load
from epp.model.events import EndpointUpserted, Event, Listed, LoadReported
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Api, InferenceRequest, Prompt, RequestId, Usage
from epp.model.request_events import Finished, FirstToken
from epp.policy.explanations.explanation import explain
from epp.policy.explanations.ranking import measures
from epp.policy.scheduler import Scheduler
from epp.protocol.recording import (
    KEY_BYTES,
    VERSION,
    PromptWriter,
    Pseudonyms,
    RecordedEndpoint,
    RecordedPool,
    RecordedRequest,
    RecordingHeader,
    encode_line,
)
from epp.replay.past_decisions import PastDecisions
from epp.replay.traffic.files.source import Problems, Source
from epp.replay.traffic.recorded.parts import read_recording
from tests.plugin_packages import install

BLOCK, BLOCKS = 16, 64
PODS = ("d/a", "d/b", "d/c")
POOL = RecordedPool(
    at=0.0,
    endpoints=tuple(
        RecordedEndpoint(id=each, kv_tokens=(BLOCKS - 1) * BLOCK, block_tokens=BLOCK)
        for each in PODS
    ),
)


class Picker:
    """A picker in virtual time, and the recording of what it did."""

    def __init__(self, policy):
        scheduling = load(POLICIES[policy]).scheduling
        self.fleet = Fleet(BlockHasher(b"live"))
        self.scheduler = Scheduler(self.fleet, scheduling, random.Random(0).randrange)  # noqa: S311 (as there)
        self.measures = measures(scheduling.profiles)
        self.reported = dict.fromkeys(PODS, 0.0)
        self.writer = PromptWriter(Pseudonyms(bytes(KEY_BYTES)))
        self.lines = []
        self.explanations = []
        for number, name in enumerate(PODS):
            namespace, _, short = name.partition("/")
            endpoint = Endpoint(namespace, short, f"10.0.0.{number}", 1)
            self.fleet.apply(EndpointUpserted(endpoint), 0.0)
            self.report(name, 0.0)
        self.fleet.apply(Listed(), 0.0)

    def report(self, name, now):
        pod = self.fleet.pods[name]
        load = Load(
            running=pod.ledger.requests,
            counted=True,
            kv_usage=pod.cache_stats().used / pod.cache_stats().capacity,
            block_size=BLOCK,
            num_blocks=BLOCKS,
            at=now,
        )
        self.fleet.apply(LoadReported(name, load), now)
        self.reported[name] = now

    def serve(self, number, now, tokens):
        """Decide on a prompt; give what then happens, with the time of each."""
        for name, at in self.reported.items():
            if now - at >= 1:
                self.report(name, now)
        data = b"".join(each.to_bytes(4, "little") for each in tokens)
        request = InferenceRequest(
            id=RequestId(str(number)),
            api=Api.COMPLETIONS,
            model="m",
            target_model="m",
            prompts=(Prompt(data, exact=True, marks=(len(tokens),)),),
            stream=True,
            max_tokens=8,
        )
        quote = self.scheduler.quote(request, now)
        decision = self.scheduler.decide(request, quote, now)
        self.explanations.append(explain(decision, self.measures[decision.profile], 16))
        self.scheduler.commit(request, quote, decision, now)
        usage = Usage(len(tokens), 8, decision.predicted_cached_tokens)
        line = RecordedRequest(
            n=number + 1,
            at=now - 0.125,
            outcome="completed",
            api="completions",
            model="m",
            stream=True,
            max_tokens=8,
            prompts=(self.writer.written(quote.chains[0], len(tokens)),),
            endpoint=decision.endpoint.id,
            predicted_cached_tokens=decision.predicted_cached_tokens,
            predicted_ttft=decision.predicted_ttft,
            decided=0.125,
            first=0.375,
            end=0.875,
            status=200,
            prompt_tokens=len(tokens),
            cached_tokens=usage.cached_tokens,
            generated_tokens=8,
        )
        self.lines.append(line)
        yield now + 0.25, FirstToken(request.id)
        yield now + 0.75, Finished(request.id, usage)

    def play(self, arrivals):
        """Serve prompts at their times; ends come in between."""
        due: list[tuple[float, Event]] = []
        for number, (now, tokens) in enumerate(arrivals):
            for at, event in [each for each in due if each[0] <= now]:
                self.fleet.apply(event, at)
            due = [each for each in due if each[0] > now]
            due = sorted([*due, *self.serve(number, now, tokens)], key=lambda each: each[0])


def written(folder, lines, pools=(POOL,), configuration="least-ttft"):
    """Write a recording; give its path."""
    header = RecordingHeader(
        version=VERSION,
        salt="5a",
        part=1,
        started="2026-11-24T12:00:00.000+00:00",
        pool="p",
        configuration=configuration,
    )
    path = folder / "p-1.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(map(encode_line, [header, *pools, *lines]))))
    return path


def views(path, policy="least-ttft"):
    recording = read_recording(Source(path), Problems(strict=True), 0)
    return list(PastDecisions(recording, load(POLICIES.get(policy, policy))).views())


def documents(seed):
    """Prompts that begin like one of four, at times that are multiples of an eighth."""
    draw = random.Random(seed)  # noqa: S311 (a test's)
    now = 1.0
    for _ in range(40):
        now += draw.choice((0.125, 0.125, 0.375, 1.625))
        tokens = [draw.randrange(4)] * BLOCK * 8
        yield now, [*tokens, *(draw.randrange(1 << 31) for _ in range(draw.choice((16, 40))))]


def without_targets(explanation):
    rows = [msgspec.structs.replace(each, target="") for each in explanation.candidates]
    return msgspec.structs.replace(explanation, candidates=tuple(rows))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["least-ttft", "linear", "round-robin"])
def test_they_are_those_of_a_picker_that_saw_no_more(policy, seed, tmp_path):
    picker = Picker(policy)
    picker.play(documents(seed))
    found = views(written(tmp_path, picker.lines), policy)
    assert [each.profiles for each in found] == [
        (without_targets(each),) for each in picker.explanations
    ]
    assert [each.recorded.endpoint for each in found] == [each.endpoint for each in picker.lines]
    assert max(each.recorded.cached_tokens for each in found) > 0


def test_what_was_picked_is_what_is_booked_whatever_is_decided_now(tmp_path):
    picker = Picker("round-robin")  # sends each document everywhere
    picker.play(documents(0))
    found = views(written(tmp_path, picker.lines))
    differing = [each for each in found if each.profiles[0].winner != each.recorded.endpoint]
    assert differing
    held = [
        {row.endpoint: row.cached_tokens for row in each.profiles[0].candidates} for each in found
    ]
    predicted = [each.recorded.cached_tokens for each in found]
    assert [row[each.recorded.endpoint] for row, each in zip(held, found, strict=True)] == predicted


LINE = RecordedRequest(
    n=1,
    at=1.0,
    outcome="completed",
    api="chat",
    model="m",
    endpoint="d/b",
    decided=0.0,
    end=1.0,
    status=200,
    predicted_cached_tokens=0,
)


def lines(*changes):
    """Requests with a prompt each, all of which begin alike."""
    writer = PromptWriter(Pseudonyms(bytes(KEY_BYTES)))
    for number, change in enumerate(changes):
        data = b"".join(each.to_bytes(4, "little") for each in [7] * 64 + [number] * 16)
        chain = BlockHasher(b"s").chain(Prompt(data, exact=True), "m", "")
        prompts = (writer.written(chain, 80),)
        yield msgspec.structs.replace(
            LINE, n=number + 1, at=2.0 * number, prompts=prompts, **change
        )


def cached(view):
    return {row.endpoint: row.cached_tokens for row in view.profiles[-1].candidates}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, 64),
        ({"outcome": "unobserved", "first": 0.5, "stream": True}, 64),
        ({"outcome": "aborted", "chunks": 3, "stream": True}, 64),
        ({"status": 503}, 0),
        ({"endpoint": "", "outcome": "rejected", "reason": "line-full", "decided": None}, 0),
    ],
)
def test_how_a_request_ended_decides_what_is_cached_for_the_next(change, kept, tmp_path):
    again = msgspec.structs.replace(POOL, at=1.5)  # as in the next part
    first, second = views(written(tmp_path, lines(change, {}), (POOL, again)))
    assert first.ending.outcome == change.get("outcome", "completed")
    assert first.ending.error == change.get("reason")
    assert cached(second) == {"d/a": 0, "d/b": kept, "d/c": 0}


def test_endpoints_come_and_go_as_the_recording_says(tmp_path):
    without = msgspec.structs.replace(POOL, at=1.0, endpoints=POOL.endpoints[:1])
    first, second = views(written(tmp_path, lines({}, {"endpoint": "d/new"}), (POOL, without)))
    assert cached(first).keys() == {"d/a", "d/b", "d/c"}
    assert cached(second).keys() == {"d/a"}
    assert second.recorded.endpoint == "d/new"


APART = """
plugins:
- {type: disagg-profile-handler, parameters: {deciders: {prefill: always}}}
- {type: always-disagg-pd-decider, name: always}
- {type: prefill-filter}
- {type: decode-filter}
- {type: max-score-picker}
schedulingProfiles:
- {name: prefill, plugins: [{pluginRef: prefill-filter}, {pluginRef: max-score-picker}]}
- {name: decode, plugins: [{pluginRef: decode-filter}, {pluginRef: max-score-picker}]}
"""


def test_who_prefilled_has_the_prompt(tmp_path):
    change = {"endpoint": "d/a", "prefill": "d/c"}
    roles = {"d/a": "decode", "d/b": "both", "d/c": "prefill"}
    pool = msgspec.structs.replace(
        POOL,
        endpoints=tuple(
            msgspec.structs.replace(each, role=roles[each.id]) for each in POOL.endpoints
        ),
    )
    path = written(tmp_path, lines(change, {}), (pool,))
    _, second = views(path)
    assert cached(second) == {"d/a": 64, "d/b": 0}
    _, second = views(path, APART)
    assert [each.profile for each in second.profiles] == ["prefill", "decode"]


def test_an_endpoint_that_is_used_before_it_is_listed_has_the_role_that_is_then_listed(tmp_path):
    roles = {"d/a": "decode", "d/b": "decode", "d/c": "prefill"}
    listed = tuple(msgspec.structs.replace(each, role=roles[each.id]) for each in POOL.endpoints)
    first, second = (RecordedPool(at=at, endpoints=listed[:many]) for at, many in ((0, 2), (1, 3)))
    change = {"endpoint": "d/a", "prefill": "d/c"}
    *_, view = views(written(tmp_path, lines(change, {}), (first, second)), APART)
    found = [{row.endpoint: row.cached_tokens for row in each.candidates} for each in view.profiles]
    assert found == [{"d/c": 64}, {"d/a": 64, "d/b": 0}]


@pytest.mark.parametrize("limit", [-1, 0])
def test_a_limit_that_no_answer_has_is_none(limit, tmp_path):
    change = {"max_tokens": limit, "prompt_tokens": 80, "generated_tokens": 9}
    first, second = views(written(tmp_path, lines(change, {})))
    assert first.ending.completion_tokens == 9
    assert cached(second) == {"d/a": 0, "d/b": 64, "d/c": 0}


def test_a_configuration_that_refuses_says_why(tmp_path):
    none = msgspec.structs.replace(POOL, endpoints=())
    found = views(written(tmp_path, lines({"endpoint": ""}), (none,)))
    assert [(each.refused, each.profiles) for each in found] == [("no-endpoints", ())]


FAILING = """
import msgspec

class Failing(msgspec.Struct, frozen=True):
    def score(self, request, candidates):
        raise LookupError("not this one")
"""


def test_a_plug_in_that_raises_refuses_the_request_alone(tmp_path, monkeypatch, capsys):
    install(tmp_path, monkeypatch, "raising", FAILING, {"failing": "raising:Failing"})
    mine = tmp_path / "mine.yaml"
    mine.write_text("plugins: [{type: failing}, {type: max-score-picker}]")
    path = written(tmp_path, lines({}))
    assert main(["explain", "1", f"--recording={path}", f"--policy={mine}"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].startswith(
        "refused by this configuration: internal: LookupError: not this one (raising.py:"
    )
    assert shown[3].startswith("picked  d/b")


def test_a_request_processor_that_raises_refuses_the_request_alone(tmp_path, monkeypatch, capsys):
    processing = FAILING.replace(
        "score(self, request, candidates)", "process_request(self, request)"
    )
    install(tmp_path, monkeypatch, "raising", processing, {"failing": "raising:Failing"})
    mine = tmp_path / "mine.yaml"
    mine.write_text("plugins: [{type: failing}, {type: max-score-picker}]")
    path = written(tmp_path, lines({}))
    assert main(["explain", "1", f"--recording={path}", f"--policy={mine}"]) == 0
    shown = capsys.readouterr().out
    assert "refused by this configuration: internal: LookupError: not this one" in shown
    assert "picked  d/b" in shown


COUNTING = """
import msgspec
from epp.model.request_events import Aborted, Admitted

class Counting(msgspec.Struct, frozen=True):
    def start(self, context):
        sent = set()
        context.subscribe([Admitted], lambda event, *_: sent.add(event.quote.request_id))
        context.subscribe([Aborted], lambda event, *_: sent.remove(event.request_id))
        return self

    def score(self, request, candidates):
        return [0.0 for _ in candidates]
"""


def test_plug_ins_see_no_end_of_what_was_not_sent(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "counting", COUNTING, {"counting": "counting:Counting"})
    refused = {"endpoint": "", "outcome": "refused", "status": None}
    path = written(tmp_path, lines(refused, {}))
    found = views(path, "plugins: [{type: counting}, {type: max-score-picker}]")
    assert [each.recorded.endpoint for each in found] == ["", "d/b"]


def test_the_command_shows_it_as_a_running_pickers(tmp_path, capsys):
    path = written(tmp_path, lines({}, {"predicted_cached_tokens": 64, "predicted_ttft": 0.02}))
    assert main(["explain", "2", f"--recording={path}"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "2 · model m · 2026-11-24T12:00:02.000+00:00"
    assert shown[2] == "profile default: 3 candidates, 80 prompt tokens"
    assert shown[3].startswith("winner  d/b, by ")
    assert shown[4].split()[:4] == ["endpoint", "cached", "trust", "sent"]
    assert shown[5].split()[:2] == ["d/b", "64"]
    assert shown[-4] == "picked  d/b, 64 tokens predicted to be cached, ttft 20 ms predicted"
    assert shown[-3] == "then    completed, status 200, 1000 ms in all"
    assert shown[-1].startswith("A reconstruction: ")


def test_without_a_number_it_lists_the_last(tmp_path, capsys):
    path = written(tmp_path, lines({}, {}, {"endpoint": "d/c"}), configuration="mine.yaml")
    assert main(["explain", "--last=2", f"--recording={path}", "--policy=least-ttft"]) == 0
    second, third = capsys.readouterr().out.splitlines()
    assert second.split()[:3] == ["12:00:02.000", "2", "d/b"]
    assert "picked" not in second
    assert "picked d/c" in third


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["9", "--recording=PATH"], 1, "9: not among the recorded requests"),
        (["--recording=PATH", "--follow"], 2, "--follow: it requires a running picker"),
        (["--recording=PATH", "--policy=leest"], 2, "`leest` is not a policy"),
        (["--recording=/nowhere"], 2, "epp: --recording: cannot read /nowhere: "),
        ([f"--recording={__file__}"], 2, f"epp: --recording {__file__}:1: the file is not a rec"),
        (["--policy=linear"], 2, "--policy: it requires --recording"),
    ],
)
def test_what_cannot_be_explained_is_said(words, status, told, tmp_path, capsys):
    path = written(tmp_path, lines({}))
    assert main(["explain", *(each.replace("PATH", str(path)) for each in words)]) == status
    assert told in capsys.readouterr().err


def test_lines_that_cannot_be_read_are_counted(tmp_path, capsys):
    path = written(tmp_path, lines({}))
    path.write_bytes(path.read_bytes() + gzip.compress(b"{"))
    assert main(["explain", f"--recording={path}"]) == 0
    told = capsys.readouterr()
    assert "1 lines skipped" in told.err
    assert len(told.out.splitlines()) == 1
