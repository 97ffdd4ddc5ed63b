"""The table of the exchange's stages, as its docstring draws it, against what the exchange does."""

import ast
from pathlib import Path

import pytest

import epp
from epp.model.decision import Decision
from epp.model.request import RequestId
from epp.protocol.extproc import exchange as module
from epp.protocol.extproc.director import PendingDecision
from epp.protocol.extproc.exchange import Exchange
from epp.protocol.extproc.messages import (
    Message,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from epp.protocol.extproc.settings import ExchangeSettings
from tests.native.built import needs
from tests.protocol.extproc.conversation import OK, POD, Stub, body, chat_body, headers

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
SOURCE = Path(epp.__file__).parent / "protocol/extproc/exchange.py"
DRAWN = [
    line.split(maxsplit=1)
    for line in (ast.get_docstring(ast.parse(SOURCE.read_text())) or "").splitlines()
    if line.startswith("    ") and line.split()[0] in STAGES
]
ROWS = {name: [cell.strip() for cell in rest.split("  ") if cell] for name, rest in DRAWN}
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
    assert machine._stage is (module.CLOSED if last else STAGES[stage])
    assert bool(step.replies) is (stage != "closed")
    assert step.wants is machine._stage.wants
