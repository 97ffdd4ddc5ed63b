"""What `epp up` says: its first lines, and the picker's log for people."""

import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from epp.model.endpoint import target_of
from epp.model.events import EjectionReason
from epp.up.pages import Relayed
from epp.up.probe import Probe

_LEVELS = ("debug", "info", "warning", "error", "critical")
_EVENTS = {
    "endpoint.unreachable": "{endpoint} is down: {error}",
    "endpoint.metrics_late": "{endpoint} answers /metrics late, but still gets requests",
    "endpoint.metrics_missing": "{endpoint} has no metrics page ({error}), but still gets requests",
    "endpoint.recovered": "{endpoint} is up",
    "endpoint.asleep": "{endpoint} sleeps, and gets no requests while others are awake",
    "endpoint.awake": "{endpoint} is awake",
    "endpoint.ejected": "{endpoint} {fault}, and gets none for up to {seconds:g} s",
    "endpoint.returned": "{endpoint} gets requests again",
    "endpoint.metrics_frozen": "{endpoint} serves requests, and its metrics have not changed for"
    " {seconds} s: they are not used",
    "endpoint.metrics_unknown": "{endpoint} has no metrics that say how loaded it is",
}
"""Events of the picker's log that are shown at any level."""
_PAGE_EVENTS = {
    "source.failed": "{url} cannot be read: {error}",
    "source.recovered": "{url} can be read again",
}
"""Events of a page, also shown at any level."""
_FAULTS = {
    EjectionReason.FAILURES.value: "fails one request after another",
    EjectionReason.STALL.value: "takes requests and does nothing",
}
_FALLBACK = "transport.fallback"
_SLOWER = (
    "the picker's compiled transport cannot be used ({reason}), so each request costs several times"
    " the CPU; `epp check --native` says what is missing"
)
_TOLD_BY_US = {"endpoints_file.rejected", "endpoints_file.recovered", "endpoints_file.changed"}
"""Events that `AddressBook`, which reads the same file, reports itself."""
NOT_RELAYED = Relayed()
_ENVOY_LINE = re.compile(r"\[[^]]*\]\[\d+\]\[\w+\]\[\w+\] (?:\[[^]]*\] )?(.*)")
_ERRNO = re.compile(r"^\[Errno \d+\] ")
_OMITTED = {"event", "level", "timestamp"}
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 (it is recognised, not bound)


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """The facts in the first lines: where clients connect, and by which policy requests are routed.

    `key_added`: requests get a key of ours. `endpoints_file` lists the servers, if no URLs do.
    """

    ip: str
    port: int
    tls: bool
    metrics_port: int
    policy: str
    key_added: bool
    endpoints_file: Path | None = None

    @property
    def url(self) -> str:
        """The base URL for clients on this machine."""
        ip = _ANY_ADDRESS.get(self.ip, self.ip)
        return f"http{'s' * self.tls}://{target_of(ip, self.port)}"

    @property
    def opened(self) -> bool:
        """Whether other machines can connect."""
        return not (self.ip.startswith("127.") or self.ip == "::1")


def introduction(front: Front, probes: Sequence[Probe]) -> list[str]:
    """Return the first lines: the servers, a `curl` or why there is none, and how to stop."""
    servers = f"{len(probes)} model server{'s' * (len(probes) != 1)}"
    lines = [f"{front.url} in front of {servers} ({front.policy})", ""]
    names = _names(probes)
    width = max(map(len, names), default=0)
    table = [f"  {name:{width}}  {_answer(each)}" for name, each in zip(names, probes, strict=True)]
    lines += [*table, ""] if table else []
    lines += [*_first_step(front, probes), ""]
    lines.append(f"Metrics: http://127.0.0.1:{front.metrics_port}/metrics")
    if front.opened and front.key_added:
        lines.append("Anyone who can reach this port uses the servers' API key.")
    if not front.opened:
        everywhere = "::" if ":" in front.ip else "0.0.0.0"  # noqa: S104 (it is told, not bound)
        lines.append(f"Only this machine can connect; --host {everywhere} lets others in.")
    lines += ["Ctrl-C drains and stops.", ""]
    return lines


def _first_step(front: Front, probes: Sequence[Probe]) -> list[str]:
    """Return what to do first: send a request, or make a server known."""
    if probes:
        named = any(each.models for each in probes)
        with_model = "" if named else ", with the name of a model in place of MODEL"
        return [f"Try it{with_model}:", "", f"  {curl(front, probes)}"]
    if front.endpoints_file is None:
        return ["No server is known yet: names are resolved again every 5 seconds."]
    return [
        f"No server is known yet: list some in {front.endpoints_file}, which is followed:",
        "",
        "  endpoints:",
        "  - {name: vllm-0, address: 10.0.0.11, port: 8000}",
    ]


def _names(probes: Sequence[Probe]) -> list[str]:
    """Return names for the addresses: the only address of a URL has the URL's own."""
    addresses = [each.address for each in probes]
    counts = Counter(each.server for each in addresses)
    return [(each.server if counts[each.server] == 1 else "") or each.name for each in addresses]


def _answer(probe: Probe) -> str:
    if probe.problem:
        return probe.problem
    return ", ".join(probe.models) or "lists no models"


def curl(front: Front, probes: Sequence[Probe]) -> str:
    """Return a command that asks a model that some server has."""
    model = next((name for each in probes for name in each.models), "MODEL")
    question = {"role": "user", "content": "What is a prefix cache good for?"}
    body = {"model": model, "messages": [question], "max_tokens": 64, "stream": True}
    key = any(each.wants_key for each in probes) and not front.key_added
    return " ".join(
        [
            f"curl -N {front.url}/v1/chat/completions",
            "-H 'content-type: application/json'",
            *(['-H "authorization: Bearer $API_KEY"'] if key else []),
            f"-d {shlex.quote(json.dumps(body))}",
        ]
    )


def picker_line(text: str, level: str, relayed: Relayed = NOT_RELAYED) -> str:
    """Return a line of the picker's log for people; empty if it is below `level`.

    Lines that are not JSON, such as a traceback, are passed on. The picker knows servers behind the
    relay only by the relay's URLs and statuses, which are replaced by the servers' own.
    """
    try:
        line = json.loads(text)
        event, severity = str(line["event"]), str(line["level"])
    except (ValueError, KeyError, TypeError):
        return f"picker: {text}"
    if event in _EVENTS and line.get("endpoint"):
        name = str(line["endpoint"]).removeprefix("default/")
        problem = relayed.problems.get(name)
        error = f"it {problem}" if problem else _reason(line)
        fault, seconds = _FAULTS.get(str(line.get("reason"))), line.get("seconds")
        return _EVENTS[event].format(endpoint=name, error=error, fault=fault, seconds=seconds)
    line = _with_own_url(line, relayed)
    if event in _PAGE_EVENTS and line.get("url"):
        return _PAGE_EVENTS[event].format(url=line["url"], error=_reason(line))
    below = severity in _LEVELS and _LEVELS.index(severity) < _LEVELS.index(level)
    if below or event in _TOLD_BY_US:
        return ""
    if event == _FALLBACK:
        return _SLOWER.format(reason=line.get("reason"))
    shown = line | ({"error": _reason(line)} if "error" in line else {})
    details = " ".join(f"{key}={value}" for key, value in shown.items() if key not in _OMITTED)
    return f"picker: {event} {details}".rstrip()


def _with_own_url(line: dict[str, object], relayed: Relayed) -> dict[str, object]:
    scheme, _, rest = str(line.get("url", "")).partition("://")
    host, slash, path = rest.partition("/")
    if (found := relayed.servers.get(f"{scheme}://{host}")) is None:
        return line
    own, name = found
    problem = relayed.problems.get(name)
    told = {"error": f"{name} {problem}"} if "error" in line and problem else {}
    return line | {"url": own + slash + path} | told


def envoy_line(text: str) -> str:
    """Return a line of Envoy's log without its time, thread and place."""
    found = _ENVOY_LINE.match(text)
    return f"envoy: {found[1]}" if found else f"envoy: {text}"


def _reason(line: dict[str, object]) -> str:
    return _ERRNO.sub("", str(line.get("error", "")))
