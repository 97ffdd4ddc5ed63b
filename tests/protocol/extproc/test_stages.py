"""The tables of the exchange and of its request, as docstrings draw them, against what they do."""

import ast
from collections.abc import Collection
from pathlib import Path

import pytest

import epp
from epp.model.decision import Decision
from epp.model.request import RequestId
from epp.protocol.extproc import exchange as module
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.messages import (
    BodyMode,
    Message,
    Modes,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.protocol.extproc.settings import ExchangeSettings
from tests.native.built import needs
from tests.protocol.extproc.conversation import CHAT, OK, POD, Stub, body, chat_body, headers

STAGES = {
    stage.name: stage
    for stage in (
        module.HEADERS,
        module.BODY,
        module.READING,
        module.PENDING,
        module.ANSWERED,
        module.CLOSED,
    )
}
LONG = body(chat_body(x="x" * (2 << 20)), end=False)
IN_TURNS = needs("epp.protocol.bodies.body_reader", "a body that is read in turns")
REACHED = [pytest.param(name, marks=[IN_TURNS] if name == "reading" else []) for name in STAGES]
MODES = [mode.name for mode in BodyMode]


def drawn(source: str, names: Collection[str]) -> dict[str, list[str]]:
    """Read a module's docstring: the cells of its rows that begin with these names."""
    text = (Path(epp.__file__).parent / "protocol/extproc" / source).read_text()
    lines = (ast.get_docstring(ast.parse(text)) or "").splitlines()
    rows = [line.split(maxsplit=1) for line in lines if line.startswith("    ")]
    return {
        name: [cell.strip() for cell in rest.split("  ") if cell]
        for name, rest in rows
        if name in names
    }


ROWS = drawn("exchange.py", STAGES)
UPWARD: tuple[tuple[Message, ...], ...] = (
    (headers(), RequestHeaders(headers={":method": "GET", ":path": "/"}, end_of_stream=True)),
    (body(chat_body()[:5], end=False), body(chat_body())),
    (RequestTrailers(),),
)
DOWNWARD = (
    ResponseHeaders(headers=OK),
    ResponseBody(body=b"x"),
    ResponseTrailers(),
    ResponseHeaders(headers=OK, end_of_stream=True),
)


def arrived(stage: str, *, waits: bool) -> Exchange:
    """An exchange in a stage. `waits`: its director decides later."""
    answer = PendingDecision() if waits or stage == "pending" else Decision(endpoints=(POD,))
    machine = Exchange(Stub(answer), ExchangeSettings(), RequestId("r"), 0)
    if stage == "closed":
        machine.cancelled(0)
    elif stage != "headers":
        asks = stage in {"body", "reading"}
        machine.receive(headers() if asks else RequestHeaders(headers={":method": "PUT"}), 0)
    if stage == "reading":
        machine.receive(LONG, 0)
    assert machine._stage is STAGES[stage]
    return machine


def test_every_stage_is_drawn():
    assert list(ROWS) == list(STAGES)


@pytest.mark.parametrize("mode", BodyMode)
def test_what_decides_in_a_body_mode_and_what_is_answered_then(mode):
    rows, stub = drawn("request.py", MODES), Stub()
    assert list(rows) == MODES
    machine = Exchange(stub, ExchangeSettings(), RequestId("r"), 0)
    arriving: dict[str, Message] = {
        "the head": RequestHeaders(CHAT, modes=Modes(mode)),
        "a piece": body(chat_body(), end=False),
        "the end": body(b""),
    }
    steps = [
        (moment, machine.receive(message, 0), bool(stub.requests))
        for moment, message in arriving.items()
    ]
    moment, answer, _ = next(step for step in steps if step[2])
    assert rows[mode.name] == [moment, ", ".join(type(each).__name__ for each in answer.replies)]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("stage", REACHED)
@pytest.mark.parametrize("column", range(3))
def test_messages_of_the_request(stage, column, waits):
    drawn = ROWS[stage][column]
    for message in UPWARD[column]:
        machine = arrived(stage, waits=waits and stage != "answered")
        assert (type(message) in STAGES[stage].accepts) is (drawn != "ignored")
        step = machine.receive(message, 1)
        if drawn == "ignored":
            assert machine._stage is STAGES[stage]
            assert step is STAGES[stage].idle
        else:
            name = "closed" if machine.record.error else machine._stage.name
            assert name in [*drawn.replace(" or ", ", ").split(", "), "closed"]


@pytest.mark.parametrize("message", DOWNWARD)
@pytest.mark.parametrize("stage", REACHED)
def test_messages_of_the_response(stage, message):
    machine = arrived(stage, waits=False)
    step = machine.receive(message, 1)
    last = isinstance(message, ResponseTrailers) or message.end_of_stream
    by_proxy = isinstance(message, ResponseHeaders) and stage in {"reading", "pending"}
    follows = module.ANSWERED if by_proxy else STAGES[stage]
    assert machine._stage is (module.CLOSED if last else follows)
    assert bool(step.replies) is (stage != "closed")
    assert step.wants is machine._stage.wants
