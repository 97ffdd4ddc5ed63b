"""The result of each call of an exchange: the replies that are due, and what it waits for."""

from collections.abc import Sequence
from enum import Enum

import msgspec

from epp.protocol.extproc.messages import Reply


class Wants(Enum):
    """What an exchange waits for once its replies are sent."""

    NEXT = "the peer's next message, its end or a reset"
    REST = "the same, for the request to go on; `Exchange.held_bytes` of it are held until it ends"
    TURN = "that other streams had their turn: `Exchange.proceed` then reads more of a long body"
    DECISION = "the decision that is pending (`Exchange.pending`); messages wait until then"
    ROOM = "that the peer reads: `Exchange.proceed` has more replies then"
    END = "nothing: the exchange is over and the stream is to be closed"


class Step(msgspec.Struct, frozen=True, gc=False):
    """The next work of a driver: send `replies` in order, then wait for `wants`."""

    replies: Sequence[Reply]
    wants: Wants
