"""Plug-ins for the Gateway API Inference Extension's conformance suite; not for production.

They act only if a configuration names them: the first lets clients choose their endpoint, the
second reveals to them which endpoint served. Their names are llm-d-router's, as in the suite's
own configuration.
"""

from epp.model.decision import Decision
from epp.model.endpoint import canonical_place
from epp.model.request import InferenceRequest
from epp.policy.plugins import Candidates, Headers, PluginParameters

SELECTION = "test-epp-endpoint-selection"
"""The request header: one or more `ip` (any port of it) or `ip:port`, separated by commas."""


class HeaderBasedTestingFilter(PluginParameters, frozen=True):
    """Keeps the endpoints that the request's header names; without the header, all.

    A header that names no candidate leaves none. The gateway's subset hint applies first; in the
    suite's own picker the header overrides it.
    """

    def filter(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return the named candidates, in their order."""
        header = request.headers.get(SELECTION)
        if not header:
            return candidates
        named = {canonical_place(part.strip()) for part in header.split(",")}
        return [
            each
            for each in candidates
            if not named.isdisjoint((each.endpoint.target, each.endpoint.address))
        ]


ECHO = "x-echo-set-header"
"""The request header that names a header for the suite's model server to send in its response."""
SERVED = "x-conformance-test-served-endpoint"


class ServedVerifier(PluginParameters, frozen=True):
    """Adds a response header with the endpoint that served, as the gateway reports it.

    The suite's model server is asked to name the endpoint that was picked, as the suite's own
    picker does: some gateways show no responses.
    """

    def request_headers(
        self, request: InferenceRequest, decision: Decision, candidates: Candidates
    ) -> Headers:
        """Return the header that the model server repeats (`RequestHeaderSource`)."""
        return ((ECHO, f"{SERVED}:{decision.endpoint.target}"),)
