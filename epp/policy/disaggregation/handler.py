"""The handlers of disaggregation, which choose endpoints for decoding, prefill and encoding.

The request goes to the decoding endpoint, whose sidecar sends the stages before to the endpoints
that headers name. Types, parameters and rules are llm-d-router's
(pkg/epp/framework/plugins/scheduling/profilehandler/disagg).
"""

from collections.abc import Sequence
from math import ceil
from typing import Annotated, ClassVar

import msgspec

from epp.errors import EndpointsFull, NoEndpoints
from epp.model.decision import Decision
from epp.model.request import InferenceRequest
from epp.policy.disaggregation.deciders import AlwaysDisaggPdDecider, PrefixBasedPdDecider
from epp.policy.effects import Effect, mapped_to, without_effect
from epp.policy.handlers import Port, at_primary_port
from epp.policy.plugins import Decider, PluginContext, PluginParameters, RunProfile, UnknownProfile
from epp.values import replaced

PREFILLER = "x-prefiller-host-port"
ENCODERS = "x-encoder-hosts-ports"
_DECODE_FIRST, _PREFILL_FIRST = {"", "decode", "decodefirst"}, {"prefill", "prefillfirst"}
_BYTES_PER_TOKEN = 4
_KINDS = {
    (False, False): "decode-only",
    (False, True): "prefill-decode",
    (True, False): "encode-decode",
    (True, True): "encode-prefill-decode",
}
"""llm-d-router's words for the stages that run separately: encoding, prefill."""
_ONE_INDEX = without_effect("there is one index of caches")
_NO_DECIDER = "pd-profile-handler names no decider: prefill runs for every prompt, as before 0.6"
_OLDER = "{}Profile"
"""The parameter that names the profile of a stage, in the older schema."""


class DisaggProfiles(PluginParameters, frozen=True):
    """The names of the stages' profiles; empty ones stand for the defaults."""

    decode: str = "decode"
    prefill: str = "prefill"
    encode: str = "encode"

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            if not getattr(self, field.name):
                msgspec.structs.force_setattr(self, field.name, field.default)


class DisaggDeciders(PluginParameters, frozen=True):
    """The names of plug-ins that decide whether a stage runs; with an empty name it does not."""

    prefill: str = ""
    encode: str = ""


_PROFILES, _DECIDERS = DisaggProfiles(), DisaggDeciders()


class DisaggProfileHandler(PluginParameters, frozen=True):
    """Runs the profile of decoding, and those of encoding and prefill if deciders want them.

    The fields below `deciders` are the older schema, which may not be mixed with the others.
    """

    stage_order: str = "decode-first"
    """`decode-first` or `prefill-first`; case, `-` and `_` do not matter."""
    profiles: DisaggProfiles = _PROFILES
    """The profile of each stage."""
    deciders: DisaggDeciders = _DECIDERS
    """The deciders of the stages."""
    decode_profile: Annotated[str, mapped_to("`profiles.decode`")] = ""
    prefill_profile: Annotated[str, mapped_to("`profiles.prefill`")] = ""
    encode_profile: Annotated[str, mapped_to("`profiles.encode`")] = ""
    prefill_decider_plugin_name: Annotated[str, mapped_to("`deciders.prefill`")] = ""
    encode_decider_plugin_name: Annotated[str, mapped_to("`deciders.encode`")] = ""
    decider_plugin_name: Annotated[str, mapped_to("`deciders.prefill`")] = ""

    def __post_init__(self) -> None:
        if self._order not in _DECODE_FIRST | _PREFILL_FIRST:
            raise ValueError(
                f"`stageOrder` must be `decode-first` or `prefill-first`, not `{self.stage_order}`"
            )
        if self._is_flat and (self.profiles != _PROFILES or self.deciders != _DECIDERS):
            raise ValueError("write `profiles` and `deciders`, or the older fields, and not both")
        if self._order in _PREFILL_FIRST and self._stages()[1].prefill:
            raise ValueError("`prefill-first` has no `deciders.prefill`: prefill always runs")

    @property
    def _order(self) -> str:
        return self.stage_order.lower().replace("-", "").replace("_", "")

    @property
    def _is_flat(self) -> bool:
        profiles = self.decode_profile or self.prefill_profile or self.encode_profile
        deciders = self.prefill_decider_plugin_name or self.encode_decider_plugin_name
        return bool(profiles or deciders or self.decider_plugin_name)

    def _stages(self) -> tuple[DisaggProfiles, DisaggDeciders]:
        """Return the names of profiles and deciders, of whichever schema."""
        if not self._is_flat:
            return self.profiles, self.deciders
        return (
            DisaggProfiles(self.decode_profile, self.prefill_profile, self.encode_profile),
            DisaggDeciders(
                self.prefill_decider_plugin_name or self.decider_plugin_name,
                self.encode_decider_plugin_name,
            ),
        )

    def start(self, context: PluginContext) -> "Disaggregation":
        """Return the handler with its deciders. Raises `ConfigError` for unknown ones."""
        profiles, deciders = self._stages()
        return Disaggregation(
            profiles=profiles,
            prefill_decider=_decider(context, deciders.prefill),
            encode_decider=_decider(context, deciders.encode),
            prefill_first=self._order in _PREFILL_FIRST,
            parameter=_OLDER if self._is_flat else "profiles.{}",
        )


class PdProfileHandler(PluginParameters, frozen=True):
    """Runs the profile of decoding, and that of prefill if the decider wants it."""

    decode_profile: str = "decode"
    """The profile of decoding."""
    prefill_profile: str = "prefill"
    """The profile of prefill."""
    decider_plugin_name: str | None = None
    """The decider of prefill; without a name, the file's `prefix-based-pd-decider`."""
    primary_port: Port = 0
    """If not 0, requests go to this port of the pod, and a header names the rank."""
    threshold: Annotated[
        float | None,
        mapped_to("a `prefix-based-pd-decider` with a quarter of it, since it counts bytes"),
    ] = None
    """From versions before deciders, where 0 is the default; used if the decider is not listed."""
    prefix_plugin_type: Annotated[str, _ONE_INDEX] = ""
    prefix_plugin_name: Annotated[str, _ONE_INDEX] = ""
    prefix_match_info_producer_name: Annotated[str, _ONE_INDEX] = ""

    def __post_init__(self) -> None:
        if self.decider_plugin_name == "":
            raise ValueError("`deciderPluginName` is empty")

    def start(self, context: PluginContext) -> "Disaggregation":
        """Return the handler with its decider. Raises `ConfigError` for an unknown one."""
        name = self.decider_plugin_name
        threshold = 0.0 if name is None and self.threshold is None else self.threshold
        default: Decider | None = None
        if threshold is not None:
            tokens = ceil(threshold / _BYTES_PER_TOKEN)
            default = PrefixBasedPdDecider(tokens) if tokens > 0 else AlwaysDisaggPdDecider()
        decider = context.plugin(name or "prefix-based-pd-decider", Decider, default)
        return Disaggregation(
            profiles=DisaggProfiles(self.decode_profile, self.prefill_profile),
            prefill_decider=decider,
            parameter=_OLDER,
            primary_port=self.primary_port,
            notes=(_NO_DECIDER,) if self.threshold is None and decider is default else (),
        )


class DisaggHeadersHandler(PluginParameters, frozen=True):
    """Sets the headers of disaggregation, in versions whose profile handlers do not."""

    effect: ClassVar[Effect] = mapped_to("the profile handler, which sets the headers itself")

    prefill_profile: str = "prefill"
    encode_profile: str = "encode"


def _decider(context: PluginContext, name: str) -> Decider | None:
    return context.plugin(name, Decider) if name else None


class Disaggregation(msgspec.Struct, eq=False, kw_only=True):
    """Runs up to three profiles for a request, and joins them into the decision on decoding.

    If `prefill_first`, the prefill profile runs first, without a decider. `parameter` is the path
    of the parameter that names the profile of a stage, with `{}` for the stage.
    """

    profiles: DisaggProfiles
    prefill_decider: Decider | None
    encode_decider: Decider | None = None
    prefill_first: bool = False
    parameter: str
    primary_port: int = 0
    notes: Sequence[str] = ()

    def check_profiles(self, names: Sequence[str]) -> Sequence[str]:
        """Return the notes, and warn of stages and profiles that never run.

        A stage does not run if its profile has the default name and does not exist. Raises
        `UnknownProfile` for another one that does not exist.
        """
        stages = {
            "decode": True,
            "prefill": self.prefill_first or self.prefill_decider is not None,
            "encode": self.encode_decider is not None,
        }
        warnings, running = [], set()
        for stage, runs in stages.items():
            name = getattr(self.profiles, stage)
            if name in names:
                running |= {name} if runs else set()
            elif stage == "decode" or name != getattr(_PROFILES, stage):
                raise UnknownProfile(self.parameter.format(stage), name)
            elif runs:
                warnings.append(f"{name} never runs: no profile is named `{name}`")
                self._leave_out(stage)
        idle = (f"profile `{name}` never runs" for name in names if name not in running)
        return [*self.notes, *warnings, *idle]

    def _leave_out(self, stage: str) -> None:
        if stage == "encode":
            self.encode_decider = None
        else:
            self.prefill_first, self.prefill_decider = False, None

    def schedule(self, request: InferenceRequest, run: RunProfile) -> Decision:
        """Return the decision on decoding with those on the other stages that ran.

        A stage that finds no endpoint is left to the decoding endpoint. Raises `NoEndpoints` if
        there is no decoding endpoint.
        """
        profiles = self.profiles
        encode: Decision | None = None
        prefill: Decision | None = None
        if request.response_id:  # only the server that has the response knows the turns before
            decode = self._decode(request, run)
        elif self.prefill_first:
            prefill = _attempt(run, profiles.prefill, request)
            encode = self._encode(request, prefill, run)
            peer = prefill and prefill.endpoint
            decode = self._decode(replaced(request, peer=peer), run)
        else:
            decode = self._decode(request, run)
            encode = self._encode(request, decode, run)
            decider = self.prefill_decider
            if decider is not None and decider.wants(request, decode):
                asked = replaced(request, peer=decode.endpoint)
                prefill = _attempt(run, profiles.prefill, asked)
        return self._joined(decode, encode, prefill)

    def _decode(self, request: InferenceRequest, run: RunProfile) -> Decision:
        try:
            return run(self.profiles.decode, request)
        except EndpointsFull:
            raise
        except NoEndpoints as error:
            problem = f"no decode endpoint: {error}"
            after = error.retry_after
            raise NoEndpoints(problem, reason="no-decode-endpoint", retry_after=after) from error

    def _encode(
        self, request: InferenceRequest, before: Decision | None, run: RunProfile
    ) -> Decision | None:
        decider = self.encode_decider
        if decider is None or not decider.wants(request, before):
            return None
        return _attempt(run, self.profiles.encode, request)

    def _joined(
        self, decode: Decision, encode: Decision | None, prefill: Decision | None
    ) -> Decision:
        ran = (prefill, encode) if self.prefill_first else (encode, prefill)
        if prefill is not None and prefill.endpoint.target == decode.endpoint.target:
            prefill = None  # an endpoint that does its own prefill needs no header
        headers = decode.headers if encode is None else ((ENCODERS, encode.destination),)
        decision = replaced(
            decode,
            stages=tuple(each for each in ran if each is not None),
            disaggregation=_KINDS[encode is not None, prefill is not None],
            headers=headers,
            encode=None if encode is None else encode.endpoint,
        )
        if prefill is not None:
            decision = replaced(
                decision,
                predicted_cached_tokens=prefill.predicted_cached_tokens,
                predicted_ttft=prefill.predicted_ttft,
                predicted_for=prefill.predicted_for,
                prefill=prefill.endpoint,
                headers=(*headers, (PREFILLER, prefill.endpoint.target)),
            )
        return at_primary_port(decision, self.primary_port) if self.primary_port else decision


def _attempt(run: RunProfile, name: str, request: InferenceRequest) -> Decision | None:
    try:
        return run(name, request)
    except NoEndpoints:
        return None
