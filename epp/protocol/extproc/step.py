"""The result of each call of an exchange: the replies that are due, and the next wait."""

from enum import Enum
from typing import Final

from mypy_extensions import mypyc_attr

from epp.protocol.extproc.messages import Reply
from epp.values import Value


class Wants(Enum):
    """The event that an exchange waits for once its replies are sent."""

    NEXT = "the peer's next message, its end or a reset"
    REST = "the same, for the request to go on; `Exchange.held_bytes` of it are held until it ends"
    TURN = "that other streams had their turn: `Exchange.proceed` then reads more of a long body"
    DECISION = "the decision that is pending (`Exchange.pending`)"
    ROOM = "that the peer reads: `Exchange.proceed` has more replies then"
    END = "nothing: the exchange is over and the stream is to be closed"


@mypyc_attr(free_list_len=1, acyclic=True)
class Step(Value):
    """The next work of a driver: send `replies` in order, then wait for `wants`."""

    def __init__(self, replies: list[Reply], wants: Wants) -> None:
        self.replies: Final = replies
        self.wants: Final = wants
