"""What the gateway conformance suite asks of an endpoint picker, and nobody else should.

Both are in force only where a configuration names them: the first lets clients say where their
requests go, the second tells them where they went. Names: the incumbent's, as in the suite's
own configuration.
"""

from collections.abc import Sequence

import msgspec

from epp.model.candidate import Candidate
from epp.model.request import InferenceRequest

SELECTION = "test-epp-endpoint-selection"
"""The request header: `ip` (any port of it) or `ip:port`, one or several with commas between."""


class HeaderBasedTestingFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keeps the endpoints that the request's header names; without the header, all.

    A header that names no candidate leaves none. What a gateway allows narrows the candidates
    before; the suite's own picker lets the header overrule it.
    """

    def filter(
        self, request: InferenceRequest, candidates: Sequence[Candidate]
    ) -> Sequence[Candidate]:
        """Return those that are named, in their order."""
        said = request.headers.get(SELECTION)
        if not said:
            return candidates
        named = {part.strip() for part in said.split(",")}
        return [
            each
            for each in candidates
            if not named.isdisjoint((each.endpoint.target, each.endpoint.address))
        ]


class ServedVerifier(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Has responses say which endpoint the gateway says has served them."""
