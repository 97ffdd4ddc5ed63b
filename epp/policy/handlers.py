"""Profile handlers that run one profile: by a header, or for a rank behind a server's first port.

Types, parameters and rules are llm-d-router's
(pkg/epp/framework/plugins/scheduling/profilehandler).
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from epp.errors import MalformedRequest
from epp.model.decision import Decision
from epp.model.endpoint import LAST_PORT, target_of
from epp.model.request import InferenceRequest
from epp.policy.plugins import PluginContext, PluginParameters, RunProfile, UnknownProfile
from epp.quantities import SWITCHES
from epp.values import replaced

Port = Annotated[int, msgspec.Meta(ge=0, le=LAST_PORT)]

_DECODE = "decode"
"""The default profile of requests that name none."""

_HEADERS = ("x-llm-d-epp-profile", "epp-profile")
"""Where llm-d's coordinator names the profile, now and up to 0.10: either setting reads both."""

_PREDICTED, _OF_SLO = "x-prediction-based-scheduling", ("default", "slo")
"""The header that turned on GIE's first predictions; the profiles without them, and with them."""

DATA_PARALLEL = "x-data-parallel-host-port"
"""The header by which llm-d's sidecar finds the rank of its pod that a request is for."""


def at_primary_port(decision: Decision, port: int) -> Decision:
    """Send a request to `port` of its pod, with a header that names the endpoint itself.

    A port of 0 is the endpoint's own.
    """
    endpoints = decision.endpoints
    return replaced(
        decision,
        headers=(*decision.headers, (DATA_PARALLEL, decision.endpoint.target)),
        targets=tuple(target_of(each.address, port or each.port) for each in endpoints),
    )


class DataParallelProfileHandler(PluginParameters, frozen=True):
    """Has the one profile decide, and sends requests to `primary_port`, naming the rank."""

    primary_port: Port = 8000

    def schedule(self, request: InferenceRequest, run: RunProfile) -> Decision:
        """Return the decision of the only profile, at the primary port."""
        return at_primary_port(run("", request), self.primary_port)

    def check_profiles(self, names: Sequence[str]) -> Sequence[str]:
        """Raise `ValueError` for several profiles."""
        if len(names) > 1:
            raise ValueError(f"`data-parallel-profile-handler` has one profile, not {len(names)}")
        return ()


class HeaderProfileHandler(PluginParameters, frozen=True):
    """Has the profile that a request header names decide.

    Without the header `default_profile` decides; a single profile always does.
    """

    header_name: str = "EPP-Profile"
    default_profile: str = _DECODE

    def start(self, _: PluginContext) -> "HeaderProfiles":
        """Return the handler; names that are blank are the defaults."""
        return HeaderProfiles(
            self.header_name.strip().lower() or _HEADERS[-1],
            self.default_profile.strip() or _DECODE,
        )


class SloAwareProfileHandler(PluginParameters, frozen=True):
    """Has the profile `slo` decide on requests with a header that says so, else `default`."""

    def schedule(self, request: InferenceRequest, run: RunProfile) -> Decision:
        """Return the decision of the profile. Raises `MalformedRequest` if the header is odd."""
        said = request.headers.get(_PREDICTED, "false")
        asked = SWITCHES.get(said.lower())
        if asked is None:
            problem = f"header `{_PREDICTED}`: {said[:64]!r} is neither true nor false"
            raise MalformedRequest(problem, reason="unknown-profile")
        return run(_OF_SLO[asked], request)

    def check_profiles(self, names: Sequence[str]) -> Sequence[str]:
        """Return a warning for each profile that is never run.

        Raises `ValueError` if there is no profile `default`, or none `slo`.
        """
        for name in _OF_SLO:
            if name not in names:
                raise ValueError(f"`slo-aware-profile-handler` needs a profile named `{name}`")
        return [f"profile `{name}` is never run" for name in names if name not in _OF_SLO]


class HeaderProfiles:
    """Runs the profile that a header names; `header` is in lower case."""

    def __init__(self, header: str, default: str) -> None:
        self._header = header
        self._headers = _HEADERS if header in _HEADERS else (header,)
        self._default = default
        self._names: Sequence[str] = ()

    def schedule(self, request: InferenceRequest, run: RunProfile) -> Decision:
        """Return the decision of the profile. Raises `MalformedRequest` if there is none."""
        if len(self._names) == 1:
            return run("", request)
        said = (request.headers.get(each, "").strip() for each in self._headers)
        name = next(filter(None, said), self._default)
        if name not in self._names:
            known = ", ".join(self._names)
            problem = (
                f"header `{self._header}`: no profile is named {name[:64]!r}; there is {known}"
            )
            raise MalformedRequest(problem, reason="unknown-profile")
        return run(name, request)

    def check_profiles(self, names: Sequence[str]) -> Sequence[str]:
        """Take the names; warn if `decode`, the built-in default, is not one of several.

        Raises `UnknownProfile` if another default is not.
        """
        self._names = tuple(names)
        if len(names) == 1 or self._default in names:
            return ()
        if self._default != _DECODE:
            raise UnknownProfile("defaultProfile", self._default)
        return [f"requests without `{self._header}` are refused: no profile is named `{_DECODE}`"]
