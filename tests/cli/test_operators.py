"""`epp explain` and `epp top`, against the operators' port of a picker in this process."""

import argparse
import asyncio
import contextlib
import json
import math
import ssl
import sys
from http import HTTPStatus

import msgspec
import pytest
from textual.widgets import DataTable, Static

from epp.adapters.telemetry.http import OperatorServer, OperatorSettings
from epp.adapters.tls import ReaderTls
from epp.app.observing.fleet_view import EndpointsPage
from epp.app.observing.views import DecisionsPage, DecisionView, EndingView
from epp.cli.main import main
from epp.cli.operators.explain import line, story
from epp.cli.operators.fleet_history import COLUMNS, FleetHistory
from epp.cli.operators.port import OperatorsPort
from epp.cli.operators.top_screen import EndpointScreen, TopApp
from epp.errors import ConfigError
from epp.model.decision import Decision, Score
from epp.policy.explanations.explanation import explain
from tests.adapters.self_signed import self_signed
from tests.app.test_decision_ring import DECISIONS, ENDPOINTS, STATES, Kept
from tests.strategies import candidate

GOOD = "good"
HEADS = [column.head for column in COLUMNS]


@contextlib.asynccontextmanager
async def port(kept, **readers):
    """The operators' port of a picker; gives its URL."""
    server = OperatorServer(
        kept.telemetry, lambda: True, "127.0.0.1", 0, OperatorSettings(debug=kept.pages, **readers)
    )
    await server.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.stop()


async def ran(*words):
    """What a command prints, and its status."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "epp", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def test_a_request_is_explained_by_its_candidates_and_what_happened():
    kept = Kept()
    kept.serve()
    record = kept.serve(cached=480, **{"x-request-id": "mine"})
    async with port(kept) as url:
        status, out, _ = await ran("explain", "mine", f"--url={url}")
        assert status == 0
        unknown, _, err = await ran("explain", "another\udcff", f"--url={url}")
        assert (unknown, r"another\udcff: not among the decisions" in err) == (1, True)
    lines = out.splitlines()
    assert lines[0].startswith(f"{record.id} · x-request-id mine · model m · ")
    assert (
        lines[2] == f"profile default: 3 candidates, {record.decision.prompt_tokens} prompt tokens"
    )
    assert lines[3].startswith(f"winner  {record.decision.endpoint.id}, by ")
    heads = "endpoint cached trust sent cost ttft"
    terms = "queued prefill class decode generate crowd slot"
    assert lines[4].split() == f"{heads} {terms}".split()
    assert lines[5].split()[:2] == [
        record.decision.endpoint.id,
        str(record.decision.predicted_cached_tokens),
    ]
    usage = record.usage
    assert lines[-1].startswith("then    completed, status 200, sent after 100 ms, ttft 200 ms, ")
    assert f"480/{usage.prompt_tokens} cached" in lines[-1]


@pytest.mark.parametrize(("seconds", "said"), [(0.0099, ""), (2.31, "sent after 2310 ms, ")])
def test_a_request_that_waited_says_for_how_long(seconds, said):
    ending = EndingView(outcome="completed", sent_after_ms=1e3 * seconds, duration_ms=3000)
    decision = DecisionView(number=1, request="mine", ending=ending)
    assert line(decision).endswith(f"completed, {said}3000 ms in all")


async def test_one_candidate_is_one():
    kept = Kept(pods=1)
    kept.serve(**{"x-request-id": "mine"})
    async with port(kept) as url:
        _, out, _ = await ran("explain", "mine", f"--url={url}")
    assert "profile default: 1 candidate, " in out


async def test_scores_are_shown_where_they_decided():
    kept = Kept("linear")
    kept.serve(**{"x-request-id": "mine"})
    async with port(kept) as url:
        _, out, _ = await ran("explain", "mine", f"--url={url}")
    assert "of score, before" in out
    assert "prefix-cache-scorer" in out


def test_a_score_that_is_not_known_is_a_dash():
    found = [candidate("a"), candidate("b")]
    scores = [Score("odd", 1.0, [0.5, math.nan], out_of_range=True)]
    decision = Decision(
        endpoints=(found[0].endpoint,), candidates=found, scores=scores, totals=[0.5, 0.0]
    )
    view = DecisionView(number=1, request="mine", profiles=(explain(decision, "score", 2),))
    head, first, second = list(story(view))[4:7]
    assert head.split()[4:6] == ["score", "odd"]
    assert [first.split()[4:6], second.split()[4:6]] == [["0.500", "0.500"], ["0.000", "-"]]


def test_a_winner_that_was_not_the_best_does_not_lead():
    found = [candidate("a"), candidate("b")]
    scores = [Score("drawn", 1.0, [0.25, 0.75])]
    decision = Decision(
        endpoints=(found[0].endpoint,), candidates=found, scores=scores, totals=[0.25, 0.75]
    )
    view = DecisionView(number=1, request="mine", profiles=(explain(decision, "score", 2),))
    said = "winner  default/a, though default/b was better by 0.5 of score: the picker draws"
    assert list(story(view))[3].startswith(said)
    assert line(view).endswith("0.5 of score after default/b")


def test_a_winner_whose_turn_it_was_says_so():
    found = [candidate("a", queued_prefill_seconds=1.0), candidate("b")]
    decision = Decision(endpoints=(found[0].endpoint,), candidates=found)
    view = DecisionView(number=1, request="mine", profiles=(explain(decision, "cost", 2),))
    said = "winner  default/a, though default/b was better by 1000 ms of cost: it was its turn"
    assert list(story(view))[3].startswith(said)


async def test_the_last_decisions_are_a_line_each_or_json():
    kept = Kept()
    for number in range(3):
        kept.serve("x", **{"x-request-id": f"r{number}"})
    async with port(kept) as url:
        _, out, _ = await ran("explain", "--last=2", f"--url={url}")
        _, machine, _ = await ran("explain", "--last=2", "--json", f"--url={url}")
    assert [line.split()[1] for line in out.splitlines()] == ["r1", "r2"]
    assert [json.loads(line)["client_id"] for line in machine.splitlines()] == ["r1", "r2"]


async def test_decisions_are_followed_as_they_happen():
    kept = Kept()
    async with port(kept) as url:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "epp", "explain", "--follow", f"--url={url}"),
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                kept.serve("x", **{"x-request-id": "first"})
                assert b"first" in await process.stdout.readline()
                kept.serve("x", **{"x-request-id": "second"})
                assert b"second" in await process.stdout.readline()
        finally:
            process.kill()
            await process.communicate()


async def test_what_a_client_sent_is_no_control_character():
    kept = Kept()
    kept.serve(**{"x-request-id": "a\x1b[31mred"})
    async with port(kept) as url:
        _, out, _ = await ran("explain", f"--url={url}")
    assert "red" in out
    assert "\x1b" not in out


async def test_who_may_read_the_pages(monkeypatch):
    async def review(token, _):
        return HTTPStatus.OK if token == GOOD else HTTPStatus.UNAUTHORIZED

    async def status(url, path, token=""):
        arguments = argparse.Namespace(url=url, token_file=None, ca_file=None, insecure=False)
        reader = OperatorsPort(arguments)
        reader._headers = {"Authorization": f"Bearer {token}"}
        try:
            await asyncio.to_thread(reader.read, path.decode(), msgspec.Raw)
        except ConfigError as error:
            return int(str(error).split("--url: ")[1][:3])
        return 200

    kept = Kept()
    async with port(kept) as url:
        assert [await status(url, each) for each in kept.pages] == [200, 200, 200]
        assert await status(url, DECISIONS + b"?limit=x") == 400
    monkeypatch.setattr("epp.adapters.telemetry.http.is_local", lambda _: False)
    async with port(kept) as url:
        assert [await status(url, each) for each in kept.pages] == [403, 403, 403]
    async with port(kept, review=review) as url:
        assert [await status(url, each) for each in kept.pages] == [401, 401, 403]
        assert await status(url, DECISIONS, GOOD) == await status(url, ENDPOINTS, GOOD) == 200
        assert await status(url, STATES, GOOD) == 403


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--url=ftp://x"], "`ftp://x` is not like http://127.0.0.1:9090"),
        (["--url=http://a b"], "`http://a b` is not like http://127.0.0.1:9090"),
        (["--url=https://a:99999"], "`https://a:99999` is not like http://127.0.0.1:9090"),
        (["--url=:9090"], "`:9090` is not like http://127.0.0.1:9090"),
        (["--url=ftp://me:sk-1@x"], "`ftp://...@x` is not like http://127.0.0.1:9090"),
        (["--url=me:sk-1@127.0.0.1:9"], "http://...@127.0.0.1:9 cannot be read: Connection"),
        (["--url=http://127.0.0.1:9"], "9 cannot be read: Connection refused; is this the metrics"),
        (["--url=127.0.0.1:9"], "http://127.0.0.1:9 cannot be read: Connection refused"),
        (["--url=http://a..b"], "http://a..b cannot be read: encoding with 'idna' codec failed"),
        (["r", "--follow"], "not both"),
        (["--token-file=/nowhere"], "--token-file: cannot read /nowhere: No such file"),
        (["--token-file={}"], "file holds no token, which is one word"),
        (["--url=https://a", "--ca-file={}"], "--ca-file: "),
        (["--url=https://a", "--ca-file={}"], "file has no certificate (PEM)"),
        (["--url=https://a", "--ca-file=/nowhere"], "--ca-file: cannot read /nowhere: No such"),
    ],
)
def test_what_cannot_be_asked_is_said(words, told, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_bytes(b"two\nlines")
    assert main(["explain", *(each.format(file) for each in words)]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "page",
    [
        b'{"last": 1, "decisions": [], "more": %s}' % (b"[" * 99_999 + b"]" * 99_999),
        b'{"last": 1, "decisions": [{"number": 1, "request": "\xff"}]}',
    ],
)
async def test_a_page_that_is_none_of_a_picker_is_an_error(page, capsys):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + page)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        number = server.sockets[0].getsockname()[1]
        assert await asyncio.to_thread(main, ["explain", f"--url=127.0.0.1:{number}"]) == 2
    assert "is not what this version reads: " in capsys.readouterr().err


async def test_the_other_scheme_is_suggested(tmp_path):
    for name, content in zip(("tls.key", "tls.crt"), self_signed("EC"), strict=True):
        (tmp_path / name).write_bytes(content)
    async with port(Kept()) as url:
        plain = await ran("explain", f"--url=https{url.removeprefix('http')}")
        bare = await ran("explain", f"--url={url.removeprefix('http://')}")
    async with port(
        Kept(), tls=ReaderTls(tmp_path, None, ssl.TLSVersion.TLSv1_2, "").context
    ) as url:
        tls = await ran("explain", f"--url={url}")
        unknown = await ran("explain", f"--url=https{url.removeprefix('http')}")
    assert "; is it http://?" in plain[2]
    assert bare == (0, "", "epp: no request has been decided yet\n")
    assert "; is it https://?" in tls[2]
    assert "; --ca-file names whom to trust, --insecure accepts any certificate" in unknown[2]


def page_of(kept):
    return asyncio.run(kept.read(ENDPOINTS))


def fleet(kept):
    return msgspec.json.decode(page_of(kept), type=EndpointsPage)


def test_hits_and_errors_are_those_of_the_last_minute():
    kept, history = Kept(pods=1), FleetHistory()
    kept.serve(cached=0)
    history.add(fleet(kept))
    record = kept.serve(cached=480)
    history.add(fleet(kept))
    (row,) = history.rows(COLUMNS[0], reverse=False)
    assert row.responses == 1
    assert row.hits == pytest.approx(480 / record.usage.prompt_tokens)
    wrong = abs(record.decision.predicted_cached_tokens - 480)
    assert row.error == pytest.approx(wrong / record.usage.prompt_tokens)
    kept.now += 120
    for _ in range(2):
        history.add(fleet(kept))
    (row,) = history.rows(COLUMNS[0], reverse=False)
    assert (row.hits, row.error, row.responses) == (None, None, 0)


def test_pages_that_come_more_seldom_are_compared():
    kept, history = Kept(pods=1), FleetHistory()
    kept.serve(cached=0)
    history.add(fleet(kept))
    for _ in range(3):
        kept.now += 120
        kept.serve(cached=480)
        history.add(fleet(kept))
        (row,) = history.rows(COLUMNS[0], reverse=False)
        assert row.responses == 1
        assert history.decisions_per_second > 0


def test_the_first_page_shows_what_was_since_the_start():
    kept, history = Kept(pods=1), FleetHistory()
    record = kept.serve(cached=480)
    history.add(fleet(kept))
    (row,) = history.rows(COLUMNS[0], reverse=False)
    assert row.hits == pytest.approx(480 / record.usage.prompt_tokens)


@pytest.mark.parametrize("seconds", [-500, 5], ids=["another machine", "the same machine"])
def test_a_picker_that_started_anew_starts_over(seconds):
    old, new, history = Kept(pods=1), Kept(pods=1), FleetHistory()
    old.serve()
    history.add(fleet(old))
    new.now += seconds
    history.add(fleet(new))
    (row,) = history.rows(COLUMNS[0], reverse=False)
    assert (row.responses, history.decisions_per_second) == (0, 0.0)


class Screens:
    """`epp top` over a picker, and what is on it."""

    def __init__(self, kept):
        self.kept = kept
        self.problem = ""
        self.app = TopApp(self.read, self.decisions, 0.05)

    def read(self):
        if self.problem:
            raise ConfigError(self.problem)
        return fleet(self.kept)

    def decisions(self):
        data = asyncio.run(self.kept.read(DECISIONS, limit=100))
        return msgspec.json.decode(data, type=DecisionsPage).decisions

    def column(self, head):
        table = self.app.query_one("#endpoints", DataTable)
        at = HEADS.index(head)
        return [str(table.get_row_at(row)[at]) for row in range(table.row_count)]

    def status(self):
        return str(self.app.query_one("#status", Static).content)


async def until(pilot, condition):
    async with asyncio.timeout(30):
        while not condition():
            await pilot.pause(0.02)


async def test_the_table_is_sorted_paused_and_looked_into():
    kept = Kept()
    record = kept.serve(cached=0, **{"x-request-id": "mine"})
    busy = record.decision.endpoint.id
    screens = Screens(kept)
    async with screens.app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: "pool chat" in screens.status())
        assert screens.column("endpoint") == [f"default/pod-{n}" for n in range(3)]
        assert "3 of 3 endpoints ready" in screens.status()
        await pilot.press("r")
        await until(pilot, lambda: screens.column("endpoint")[0] == "default/pod-2")
        for _ in range(HEADS.index("answers")):
            await pilot.press("s")
        await until(pilot, lambda: screens.column("endpoint")[0] == busy)
        await pilot.press("p")
        await until(pilot, lambda: "paused" in screens.status())
        await pilot.press("home", "enter")
        await until(pilot, lambda: isinstance(screens.app.screen, EndpointScreen))
        shown = str(screens.app.screen.query_one("#endpoint", Static).content)
        assert shown.startswith(f"{busy} · ")
        assert "mine" in shown
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(screens.app.screen, EndpointScreen))


async def test_a_picker_that_is_away_is_said_and_found_again():
    screens = Screens(Kept())
    screens.problem = "away"
    async with screens.app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: screens.status() == "away")
        screens.problem = ""
        await until(pilot, lambda: "pool chat" in screens.status())


async def test_an_endpoint_that_a_page_lists_again_is_shown_once():
    page = await asyncio.to_thread(fleet, Kept(pods=1))
    doubled = msgspec.structs.replace(page, endpoints=page.endpoints * 2)
    app = TopApp(lambda: doubled, tuple, 0.05)
    async with app.run_test(size=(160, 40)) as pilot:
        await until(pilot, lambda: app.query_one("#endpoints", DataTable).row_count == 1)


async def test_top_needs_a_terminal():
    async with port(Kept()) as url:
        status, out, err = await ran("top", "--url", url)
    assert (status, out) == (2, "")
    assert err == "epp: `epp top` needs a terminal; GET /debug/endpoints has the same as JSON\n"


def test_top_needs_its_extra_and_a_picker(monkeypatch, capsys):
    assert main(["top", "--url=http://127.0.0.1:9"]) == 2
    assert "cannot be read" in capsys.readouterr().err
    monkeypatch.setattr("epp.cli.operators.top.find_spec", lambda _: None)
    assert main(["top"]) == 2
    assert "pip install 'warmpick[top]'" in capsys.readouterr().err
