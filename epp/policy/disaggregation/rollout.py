"""Rollouts of disaggregated sets: a request stays with the pods of one revision.

Type, parameters and rules are llm-d-router's
(pkg/epp/framework/plugins/requestcontrol/screener/disaggregatedsetrollout).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal

import msgspec
from xxhash import xxh64_intdigest

from epp.label_selector import parse_label_selector
from epp.model.candidate import Candidate
from epp.model.decision import Decision
from epp.model.endpoint import Endpoint, EndpointId, Target
from epp.model.events import EndpointRemoved, EndpointUpserted, Event
from epp.model.request import InferenceRequest
from epp.policy.plugins import Candidates, Headers, PluginContext, PluginParameters

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_DRAWS = 1 << 32
_REVISION_LABEL = "disaggregatedset.x-k8s.io/revision"
_ROLE_LABEL = "disaggregatedset.x-k8s.io/role"
_REVISION_HEADER = "x-llm-d-disagg-revision"
_DECISION_HEADERS = ("x-llm-d-revision-decision-id", "x-request-id")
"""The same in all parts of a request, such as one for each of its images."""


class RolloutScope(PluginParameters, frozen=True):
    """The pods that count."""

    label_selector: _Text

    def __post_init__(self) -> None:
        parse_label_selector(self.label_selector)


class RolloutHeader(PluginParameters, frozen=True):
    """A request header that must equal a label; if it is `strict`, no match leaves no pod."""

    name: _Text
    header_name: _Text
    label_key: _Text
    mode: Literal["strict", "prefer"]


class RequiredRoles(PluginParameters, frozen=True):
    """The roles that a revision must have, with a pod for each."""

    values: list[_Text]

    def __post_init__(self) -> None:
        if not self.values or len(set(self.values)) < len(self.values):
            raise ValueError("`values` must list roles, each once")


class RevisionGating(PluginParameters, frozen=True):
    """How a revision is chosen: by the pods of all roles, or of the role that has the most.

    An empty key of a label stands for the default. `require_roles` is the older form of
    `required_roles`, for which the headers are those of the selectors.
    """

    mode: Literal["sum", "max-role", "disabled"]
    revision_label_key: str = _REVISION_LABEL
    role_label_key: str = _ROLE_LABEL
    require_roles: RequiredRoles | None = None
    required_roles: list[_Text] = []
    revision_header_name: str = ""
    disable_coordination: bool = False

    def __post_init__(self) -> None:
        if self.require_roles is not None and self.required_roles:
            raise ValueError("give only one of `requiredRoles` and `requireRoles`")
        if len(set(self.required_roles)) < len(self.required_roles):
            raise ValueError("`requiredRoles` must list roles, each once")
        if self.mode != "disabled" and not self.roles:
            raise ValueError(f"`requiredRoles` is required if `mode` is `{self.mode}`")

    @property
    def roles(self) -> Sequence[str]:
        """The roles that are required; none if gating is off."""
        if self.mode == "disabled":
            return ()
        return self.required_roles if self.require_roles is None else self.require_roles.values

    @property
    def headers(self) -> Sequence[RolloutHeader]:
        """The header of the revision, which is strict; none in the older form."""
        if not self.required_roles and not self.revision_header_name:
            return ()
        header = RolloutHeader(
            name="revision",
            header_name=self.revision_header_name or _REVISION_HEADER,
            label_key=self.revision_label_key or _REVISION_LABEL,
            mode="strict",
        )
        return (header,)


class DisaggregatedSetRolloutScreener(PluginParameters, frozen=True):
    """Keeps the endpoints of one revision that has pods of every role."""

    scope: RolloutScope
    revision_gating: RevisionGating
    header_selectors: list[RolloutHeader] = []

    def __post_init__(self) -> None:
        for field in ("name", "header_name"):
            values = [getattr(each, field).lower() for each in self.headers]
            if len(set(values)) < len(values):
                raise ValueError(f"two `headerSelectors` have the same {field.replace('_', ' ')}")

    @property
    def headers(self) -> Sequence[RolloutHeader]:
        """The headers of the revision and of the selectors."""
        return (*self.revision_gating.headers, *self.header_selectors)

    def start(self, context: PluginContext) -> "Rollout":
        """Return the screener, which follows the fleet's endpoints."""
        rollout = Rollout(self, context.below)
        context.subscribe((EndpointUpserted, EndpointRemoved), rollout.on_event)
        return rollout


class Rollout:
    """Follows the pods of each revision, and screens endpoints by it. `below` draws a number."""

    def __init__(
        self, parameters: DisaggregatedSetRolloutScreener, below: Callable[[int], int]
    ) -> None:
        self._gating = parameters.revision_gating
        self._revision_label = self._gating.revision_label_key or _REVISION_LABEL
        self._role_label = self._gating.role_label_key or _ROLE_LABEL
        self._headers = [(each.header_name.lower(), each) for each in parameters.headers]
        self._in_scope = parse_label_selector(parameters.scope.label_selector).selects
        self._below = below
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._targets: dict[Target, Endpoint] = {}
        self._weights: Mapping[str, int] | None = None
        self._revisions: frozenset[str] = frozenset()
        self.unmatched: Counter[str] = Counter()
        """Requests whose strict header no endpoint matched, by the selector's name."""

    def on_event(self, event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a listener)
        """Follow endpoints that come, change and go."""
        if isinstance(event, EndpointUpserted):
            self._forget(event.endpoint.id)  # its address may have changed
            self._endpoints[event.endpoint.id] = event.endpoint
            self._targets[event.endpoint.target] = event.endpoint
        elif isinstance(event, EndpointRemoved):
            self._forget(event.endpoint_id)
        self._weights = None

    def _forget(self, endpoint_id: EndpointId) -> None:
        gone = self._endpoints.pop(endpoint_id, None)
        if gone is not None and self._targets.get(gone.target) == gone:
            del self._targets[gone.target]

    def dump_state(self) -> dict[str, object]:
        """Return the weights of the revisions."""
        return {"weights": dict(self.weights), "endpoints": len(self._endpoints)}

    @property
    def weights(self) -> Mapping[str, int]:
        """The weight of each revision that has a pod of every role; none if gating is off."""
        if self._weights is None:
            self._revisions, self._weights = self._weigh()
        return self._weights

    @property
    def mode(self) -> str:
        """How a revision is chosen."""
        return self._gating.mode

    def shares(self) -> Mapping[str, float]:
        """Return the share of requests that each revision gets; 0 if a role has no pod."""
        weights = self.weights
        total = sum(weights.values())
        return {each: weights.get(each, 0) / (total or 1) for each in sorted(self._revisions)}

    def _weigh(self) -> tuple[frozenset[str], Mapping[str, int]]:
        """Return all revisions, and the weights of those that have a pod of every role."""
        gating, pods = self._gating, {}
        if not gating.roles:
            return frozenset(), {}
        for each in self._endpoints.values():
            if self._in_scope(each.labels):
                pod = each.namespace, each.pod or each.name
                pods[pod] = tuple(
                    each.labels.get(key, "") for key in (self._revision_label, self._role_label)
                )
        counts = Counter(pods.values())
        revisions = frozenset(revision for revision, role in counts if revision and role)
        complete = {
            revision: [counts[revision, role] for role in gating.roles]
            for revision, _ in counts
            if revision and all(counts[revision, role] for role in gating.roles)
        }
        if gating.mode == "sum":
            return revisions, {name: sum(numbers) for name, numbers in complete.items()}
        totals = [sum(numbers) for numbers in zip(*complete.values(), strict=True)]
        return revisions, {
            name: numbers[totals.index(max(totals))] for name, numbers in complete.items()
        }

    def screen(self, request: InferenceRequest, candidates: Candidates) -> Candidates:
        """Return the endpoints of one revision, or of those that strict headers name."""
        wanted = [
            (each, value)
            for header, each in self._headers
            if each.mode == "strict" and (value := request.headers.get(header))
        ]
        if self._gating.roles:
            candidates = self._of_revisions(candidates, None if wanted else request)
        for selector, value in wanted:
            key, before = selector.label_key, candidates
            candidates = [each for each in before if each.endpoint.labels.get(key) == value]
            if before and not candidates:
                self.unmatched[selector.name] += 1
        return candidates

    def _of_revisions(
        self, candidates: Candidates, drawing: InferenceRequest | None
    ) -> list[Candidate]:
        """Return the endpoints of complete revisions; of one drawn for the request `drawing`."""
        key, weights = self._revision_label, self.weights
        revisions = [each.endpoint.labels.get(key, "") for each in candidates]
        kept = sorted({each for each in revisions if each in weights})
        if drawing is not None and len(kept) > 1:
            kept = [self._draw(kept, self._number(drawing))]
        return [
            each for each, revision in zip(candidates, revisions, strict=True) if revision in kept
        ]

    def _number(self, request: InferenceRequest) -> int:
        """Return a number to draw by: the same for all parts of a request, in every replica.

        llm-d-router keeps what it drew for one of them.
        """
        names = () if self._gating.disable_coordination else _DECISION_HEADERS
        whole = next(filter(None, map(request.headers.get, names)), "")
        if not whole:
            return self._below(_DRAWS)
        return xxh64_intdigest(whole.encode(errors="replace")) % _DRAWS

    def _draw(self, revisions: Sequence[str], number: int) -> str:
        left = number / _DRAWS * sum(self.weights[each] for each in revisions)
        for each in revisions:
            left -= self.weights[each]
            if left < 0:
                return each
        return revisions[-1]

    def response_headers(
        self, _: InferenceRequest, decision: Decision, served: Target | None
    ) -> Headers:
        """Return the labels of the endpoint that served, under the selectors' headers."""
        target = None if served is None else decision.served_at(served)
        endpoint = self._targets.get(target or Target(""), decision.endpoint)
        labels = endpoint.labels
        return tuple(
            (header, labels[each.label_key])
            for header, each in self._headers
            if labels.get(each.label_key)
        )
