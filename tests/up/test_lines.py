import io
import json
from pathlib import Path

import msgspec
import pytest

from epp.protocol.endpoints import parse_endpoints
from epp.up.lines import Front, curl, envoy_line, introduction, picker_line
from epp.up.pages import Relayed
from epp.up.probe import Probe
from epp.up.servers import Address
from epp.up.terminal import Terminal

HERE = Front(ip="127.0.0.1", port=8080, tls=False, metrics_port=1234, policy="p", key_added=False)
OPEN = Front(ip="0.0.0.0", port=8080, tls=True, metrics_port=1234, policy="p", key_added=True)
SIX = Front(ip="::", port=8080, tls=False, metrics_port=1234, policy="p", key_added=False)
UP = Probe(address=Address("a:1", "10.0.0.1", 1), models=("it's", "lora"))
DOWN = Probe(address=Address("longer:1", "10.0.0.2", 1), problem="does not answer (no)")
SHY = Probe(address=Address("b:1", "10.0.0.3", 1), wants_key=True)


def test_the_first_lines_say_what_is_there():
    said = "\n".join(introduction(HERE, [UP, DOWN]))
    assert said.startswith("http://127.0.0.1:8080 in front of 2 model servers (p)\n")
    assert "\n  a:1       it's, lora\n  longer:1  does not answer (no)\n" in said
    assert "Metrics: http://127.0.0.1:1234/metrics" in said
    assert "Only this machine can connect" in said


@pytest.mark.parametrize(("ip", "everywhere"), [("127.0.0.1", "0.0.0.0"), ("::1", "::")])
def test_how_others_are_let_in_is_told_for_the_family_that_clients_use(ip, everywhere):
    said = introduction(msgspec.structs.replace(HERE, ip=ip), [UP])
    assert f"Only this machine can connect; --host {everywhere} lets others in." in said


def test_the_only_address_of_a_name_is_called_as_the_url_calls_it():
    found = [
        Address("one:80-10.0.0.1", "10.0.0.1", 80, "one:80"),
        Address("two:80-10.0.0.2", "10.0.0.2", 80, "two:80"),
        Address("two:80-10.0.0.3", "10.0.0.3", 80, "two:80"),
    ]
    said = introduction(HERE, [Probe(address=each, models=("m",)) for each in found])
    assert said[2:5] == ["  one:80           m", "  two:80-10.0.0.2  m", "  two:80-10.0.0.3  m"]
    (alone, _, shown, *_) = introduction(HERE, [UP])
    assert ("1 model server" in alone, shown) == (True, "  a:1  it's, lora")


def test_what_to_do_first_is_told():
    assert "Try it:" in introduction(HERE, [DOWN, UP])
    assert "Try it, with the name of a model in place of MODEL:" in introduction(HERE, [DOWN])
    unresolved = introduction(HERE, [])
    assert "No server is known yet: names are resolved again every 5 seconds." in unresolved
    listed = introduction(msgspec.structs.replace(HERE, endpoints_file=Path("a.yaml")), [])
    told = "No server is known yet: list some in a.yaml, which is followed:"
    assert told in listed
    assert not any("curl" in each for each in (*unresolved, *listed))
    example = "\n".join(listed).partition(told)[2].partition("Metrics")[0]
    (endpoint,) = parse_endpoints(example.encode())
    assert endpoint.name == "vllm-0"


def test_who_opens_a_port_with_a_key_is_told():
    said = "\n".join(introduction(OPEN, [UP]))
    assert "https://127.0.0.1:8080 in front of 1 model server (p)" in said
    assert "Anyone who can reach this port uses the servers' API key." in said
    assert "Only this machine" not in said
    for front in (HERE, SIX, msgspec.structs.replace(OPEN, ip="127.0.0.1")):
        assert "API key" not in "\n".join(introduction(front, [UP]))


def test_the_curl_asks_for_a_model_that_is_there():
    assert curl(SIX, [DOWN, UP]).startswith("curl -N http://[::1]:8080/v1/chat/completions -H ")
    quoted = curl(HERE, [UP]).rpartition(" -d ")[2]
    body = json.loads(quoted[1:-1].replace("'\"'\"'", "'"))
    assert (body["model"], body["stream"]) == ("it's", True)
    assert '"model": "MODEL"' in curl(HERE, [DOWN])


@pytest.mark.parametrize(("front", "asked"), [(HERE, True), (OPEN, False)])
def test_a_key_is_asked_for_where_none_is_added(front, asked):
    assert ("$API_KEY" in curl(front, [SHY])) == asked
    assert "$API_KEY" not in curl(front, [UP])


REFUSED = "[Errno 111] Connection refused"


def logged(event, level="info", **more):
    return json.dumps({"event": event, "level": level, "timestamp": "t", **more})


@pytest.mark.parametrize(
    ("text", "level", "expected"),
    [
        (logged("serving", port=1), "warning", ""),
        (logged("serving", port=1), "info", "picker: serving port=1"),
        (logged("odd", "warning", why="x"), "warning", "picker: odd why=x"),
        (logged("odd", "warning"), "error", ""),
        (
            logged(
                "endpoint.unreachable",
                "warning",
                endpoint="default/a:1",
                error=REFUSED,
            ),
            "error",
            "a:1 is down: Connection refused",
        ),
        (
            logged("endpoint.metrics_missing", endpoint="default/a:1", error="HTTP status 404"),
            "error",
            "a:1 has no metrics page (HTTP status 404), but still gets requests",
        ),
        (logged("endpoint.recovered", endpoint="default/a:1"), "error", "a:1 is up"),
        (logged("endpoint.asleep", endpoint="default/a:1"), "error", "a:1 sleeps, and gets no"),
        (logged("endpoint.awake", endpoint="default/a:1"), "error", "a:1 is awake"),
        (
            logged(
                "endpoint.ejected",
                endpoint="default/a:1",
                reason="consecutive_failures",
                seconds=30.0,
            ),
            "error",
            "a:1 fails one request after another, and gets none for up to 30 s",
        ),
        (
            logged("endpoint.ejected", endpoint="default/a:1", reason="stall", seconds=300.0),
            "error",
            "a:1 takes requests and does nothing, and gets none for up to 300 s",
        ),
        (logged("endpoint.returned", endpoint="default/a:1"), "error", "a:1 gets requests again"),
        (logged("endpoints_file.rejected", "warning", path="x", error="y"), "debug", ""),
        (logged("endpoints_file.recovered", path="x"), "debug", ""),
        (logged("endpoints_file.changed", path="x", added="y"), "debug", ""),
        (
            logged("source.failed", "warning", url="http://a:1/v1/models", error=REFUSED),
            "error",
            "http://a:1/v1/models cannot be read: Connection refused",
        ),
        (
            logged("source.recovered", url="http://a:1/v1/models"),
            "error",
            "http://a:1/v1/models can be read again",
        ),
        (
            logged("transport.fallback", "warning", reason="not built", remedy="make native"),
            "warning",
            "the picker's compiled transport cannot be used (not built), so each request costs",
        ),
        (logged("transport.fallback", "warning", reason="not built"), "error", ""),
        (logged("odd", "warning", error=REFUSED), "warning", "picker: odd error=Connection ref"),
        (
            logged("books.corrected", "error", endpoint="default/a:1", requests=2),
            "error",
            "picker: books.corrected endpoint=default/a:1 requests=2",
        ),
        (logged("odd", url="http://a:1/x"), "info", "picker: odd url=http://a:1/x"),
        ("Traceback (most recent call last):", "error", "picker: Traceback (most recent call"),
        ("[1]", "error", "picker: [1]"),
    ],
)
def test_the_pickers_log_is_told_for_people(text, level, expected):
    assert picker_line(text, level).startswith(expected)
    assert bool(picker_line(text, level)) == bool(expected)


def test_what_is_wrong_behind_the_relay_is_told():
    down = logged("endpoint.unreachable", endpoint="default/a:1", error="HTTP status 502")
    relayed = Relayed({"a:1": "does not answer (Connection refused)"})
    told = "a:1 is down: it does not answer (Connection refused)"
    assert picker_line(down, "error", relayed) == told
    assert picker_line(down, "error", Relayed({"b:1": "x"})) == "a:1 is down: HTTP status 502"


def test_urls_of_the_relay_are_told_as_those_of_servers():
    here, servers = (
        "http://127.0.0.1:4321",
        {"http://127.0.0.1:4321": ("https://a:1", "a:1-10.0.0.1")},
    )
    down = logged("source.failed", url=f"{here}/v1/models", error="HTTP status 502")
    problems = {"a:1-10.0.0.1": "does not answer (Connection refused)"}
    assert picker_line(down, "info", Relayed(problems, servers)) == (
        "https://a:1/v1/models cannot be read: a:1-10.0.0.1 does not answer (Connection refused)"
    )
    assert picker_line(down, "info", Relayed({}, servers)) == (
        "https://a:1/v1/models cannot be read: HTTP status 502"
    )
    up = logged("source.recovered", url=f"{here}/v1/models")
    for relayed, said in ((Relayed(problems, servers), "https://a:1"), (Relayed(), here)):
        assert picker_line(up, "info", relayed) == f"{said}/v1/models can be read again"


def test_envoys_log_is_told_without_its_frills():
    line = "[2026-11-22 14:30:53.228][13250][warning][misc] [source/a.cc:7] it is odd"
    assert envoy_line(line) == "envoy: it is odd"
    assert envoy_line("it is odd") == "envoy: it is odd"


class Tty(io.StringIO):
    def isatty(self):
        return True


class Broken(io.StringIO):
    def write(self, text):
        raise BrokenPipeError


def test_on_a_terminal_the_last_line_is_live():
    stream = Tty()
    terminal = Terminal(stream)
    terminal.show("one")
    terminal.show("two")
    terminal.say("said")
    terminal.show("x" * 200)
    terminal.close()
    clear = "\r\x1b[2K"
    wide = "x" * 79
    assert stream.getvalue() == f"{clear}one{clear}two{clear}said\ntwo{clear}{wide}\n"


def test_elsewhere_lines_have_the_time_and_the_live_one_comes_now_and_then():
    stream = io.StringIO()
    terminal = Terminal(stream)
    terminal.introduce(["as it is", ""])
    terminal.say("said")
    terminal.say("twice")
    terminal.show("one")  # its ten seconds have not passed
    terminal.close()
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["as it is", ""]
    assert [line.partition(" ")[2] for line in lines[2:]] == ["said", "twice"]


def test_a_reader_that_has_gone_ends_nothing():
    terminal = Terminal(Broken())
    terminal.say("said")
    terminal.show("one")
    terminal.close()


EVIL = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202e\u2028\x85m\r\n2026-01-01T00:00:00 forged\x7f"


def evil_lines():
    """Everything that a server or a client has a word in, as it comes to a terminal."""
    server = Probe(address=Address(f"a{EVIL}:1", "10.0.0.1", 1), models=(EVIL, "m"))
    lost = Probe(address=Address("b:1", "10.0.0.2", 1), problem=f"does not answer ({EVIL})")
    yield from introduction(HERE, [server, lost])
    yield picker_line(logged("endpoint.unreachable", endpoint=EVIL, error=EVIL), "error")
    yield picker_line(logged("endpoint.metrics_doubted", "warning", problem=EVIL), "warning")
    yield picker_line(logged(EVIL, "error", **{EVIL: EVIL}), "error")
    yield picker_line(EVIL, "error")
    yield envoy_line(EVIL)


@pytest.mark.parametrize("stream", [Tty, io.StringIO])
def test_nothing_that_others_said_is_obeyed_by_a_terminal(stream):
    for line in evil_lines():
        written = stream()
        terminal = Terminal(written)
        terminal.introduce([line])
        terminal.say(line)
        terminal.show(line)
        terminal.close()
        ours = written.getvalue().replace("\r\x1b[2K", "")
        assert all(part.isprintable() for part in ours.split("\n"))
        assert not [part for part in ours.split("\n") if part.startswith("2026-01-01")]


def test_a_curl_for_a_name_with_controls_is_still_one_line():
    (found,) = [line for line in evil_lines() if "curl -N" in line]
    assert found.isprintable()
    assert json.loads(found.rpartition(" -d ")[2][1:-1])["model"] == EVIL
