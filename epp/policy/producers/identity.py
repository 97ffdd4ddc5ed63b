"""The identity behind a request: its session, and its agent."""

from epp.model.request import DEFAULT_FAIRNESS_ID, InferenceRequest
from epp.policy.effects import mapped_to
from epp.policy.plugins import PluginParameters
from epp.values import replaced

_AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""The session headers of Claude Code, OpenCode and Codex, first come first served."""
_FAIRNESS_HEADERS = ("x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
_LONGEST_ID = 256
"""Characters of an id that are kept; what follows makes no difference."""


def fairness_source(request: InferenceRequest) -> str:
    """Return the header that a request's fairness id is from: `default` if from none.

    `other` if it is not one of those that are read without being configured.
    """
    if request.fairness_id == DEFAULT_FAIRNESS_ID:
        return "default"
    for name in (*_FAIRNESS_HEADERS, *_AGENT_HEADERS):
        if request.headers.get(name, "")[:_LONGEST_ID] == request.fairness_id[:_LONGEST_ID]:
            return name
    return "other"


class SessionIdProducer(PluginParameters, frozen=True):
    """Reads the session from one header, or from one cookie."""

    header_name: str = ""
    cookie_name: str = ""

    def __post_init__(self) -> None:
        if bool(self.header_name.strip()) == bool(self.cookie_name.strip()):
            raise ValueError("exactly one of `headerName` and `cookieName` is needed")

    def session_id(self, request: InferenceRequest) -> str:
        """Return the session's id; empty without one."""
        header = self.header_name.strip().lower()
        if header:
            return request.headers.get(header, "").strip()[:_LONGEST_ID]
        return _cookie(request.headers.get("cookie", ""), self.cookie_name.strip())[:_LONGEST_ID]


def _cookie(header: str, name: str) -> str:
    """Return a cookie's value (RFC 6265 §4.2.1: pairs, `; ` between them); empty without it."""
    for pair in header.split(";"):
        key, sign, value = pair.strip().partition("=")
        if sign and key == name:
            return value.strip()
    return ""


class AgentIdentity(PluginParameters, frozen=True):
    """Takes the session from the headers of agents, and the fairness id if no header names one.

    `additional_session_headers` go before the built-in ones.
    """

    additional_session_headers: list[str] = []

    def process_request(self, request: InferenceRequest) -> InferenceRequest:
        """Return the request with the agent's session as its fairness id."""
        headers = request.headers
        if request.fairness_id != DEFAULT_FAIRNESS_ID or not headers:
            return request
        if any(name in headers for name in _FAIRNESS_HEADERS):
            return request
        session = self.session_id(request)
        return replaced(request, fairness_id=session) if session else request

    def session_id(self, request: InferenceRequest) -> str:
        """Return the agent's session, whatever the fairness id; empty without one."""
        for name in (*self.additional_session_headers, *_AGENT_HEADERS):
            value = request.headers.get(name.lower())
            if value:
                return value[:_LONGEST_ID]
        return ""


class OutputLengthBucket(PluginParameters, frozen=True):
    """Guesses from a request's fields whether its response is long."""

    effect = mapped_to("the lengths that a model's responses teach, and the client's limit")
