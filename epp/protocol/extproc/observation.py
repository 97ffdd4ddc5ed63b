"""The choice of responses that are observed to their end; other streams end early.

The picker gets a message for each piece of a response, which may be each generated token. But most
of what it learns comes with the first piece: status, served endpoint, time to first token.
"""

import re
from collections.abc import Callable
from typing import Final

from epp.protocol.extproc.messages import BodyMode, Modes
from epp.protocol.extproc.record import MustStayReason
from epp.values import Value

_SAMPLE: Final = re.compile(r"sample:1/(0*[1-9][0-9]{0,8})")
# Looked up once: docs/adr/0013-compiled.md says why.
_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED
_IN_DUPLEX: Final = MustStayReason.DUPLEX
_UNANNOUNCED: Final = MustStayReason.UNANNOUNCED

FORMS: Final = "auto, all, first or sample:1/N with N of 1 or more"


class Observation(Value):
    """One response in `one_in` is observed to its end; none if that is 0.

    `auto`: also responses whose end is needed (`Director.needs_end`).
    """

    def __init__(self, one_in: int = 1, *, auto: bool = False) -> None:
        self.one_in: Final = one_in
        self.auto: Final = auto

    @classmethod
    def parse(cls, text: str) -> "Observation":
        """Read `auto`, `all`, `first` or `sample:1/N`. Raises `ValueError`."""
        if text in _NAMED:
            return _NAMED[text]
        found = _SAMPLE.fullmatch(text)
        if found is None:
            raise ValueError(f"`{text}` is not a share of responses to observe; write {FORMS}")
        return cls(int(found[1]))

    def __str__(self) -> str:
        """Write what `parse` reads."""
        names = {observation: name for name, observation in _NAMED.items()}
        return names.get(self, f"sample:1/{self.one_in}")

    def ends_early(self, randrange: Callable[[int], int]) -> bool:
        """Draw whether one exchange ends early; `randrange(n)` is any of 0 to n - 1."""
        return not self.one_in or (self.one_in > 1 and randrange(self.one_in) > 0)


AUTO: Final = Observation(0, auto=True)
_NAMED: Final = {"auto": AUTO, "all": Observation(1), "first": Observation(0)}


def must_stay_reason(modes: Modes, *, announced: bool) -> MustStayReason | None:
    """Return why a stream must stay open until its response ends; None if it need not.

    Modes that show a response whole, or not at all, end by themselves.
    """
    # Envoy 1.40 announces its modes (`protocol_config`); without that they are a guess.
    if not announced:
        return _UNANNOUNCED
    # Envoy 1.40 continues alone, with every byte, after a stream that is closed with OK if the
    # response body is `STREAMED`; in full duplex it cuts the body.
    return _IN_DUPLEX if modes.response is _DUPLEX else None
