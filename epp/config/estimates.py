"""Estimates of the lengths of media, as llm-d-router's token-producer has them.

They are read and checked, without effect: an image, a video or a sound counts as 225 tokens (640 x
360 / 1024, llm-d-router's default) until a server reports the prompt's length.
"""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from epp.policy.effects import Effect, without_effect
from epp.policy.plugins import PluginParameters

_MEDIA = without_effect(
    "images, videos and sounds count as 225 tokens each, until servers report how long prompts were"
)

Parameter = tuple[Any, object]
"""The type and the default of a parameter."""


def group(effect: Effect | None = None, /, **parameters: Parameter) -> Parameter:
    """Return a group of parameters, by their names in a file; it may be left out."""
    listed = [(name, *parameter) for name, parameter in parameters.items()]
    kind = msgspec.defstruct("Group", listed, bases=(PluginParameters,), frozen=True) | None
    return (kind if effect is None else Annotated[kind, effect]), None


_SIZE: Parameter = Annotated[int, msgspec.Meta(ge=0)], 0
_AMOUNT: Parameter = Annotated[float, msgspec.Meta(ge=0)], 0.0
_MODE: Parameter = Literal["", "dynamic", "static"], ""

_RESOLUTION = group(width=_SIZE, height=_SIZE)
_PIXELS = group(factor=_SIZE)  # pixels per token; 0: 1024
_IMAGE = group(
    _MEDIA,
    mode=_MODE,
    defaultResolution=_RESOLUTION,
    dynamic=_PIXELS,
    static=group(staticToken=_SIZE),
)
_VIDEO = group(
    _MEDIA,
    tokensPerFrame=group(mode=_MODE, dynamic=_PIXELS, static=group(numTokensPerFrame=_SIZE)),
    frames=group(
        mode=(Literal["", "sampled", "strided"], ""),
        minFrames=_SIZE,
        maxFrames=_SIZE,
        sampled=group(sampleFPS=_AMOUNT, temporalPatchSize=_SIZE),
        strided=group(defaultSourceFPS=_AMOUNT, frameStride=_SIZE),
    ),
    defaultResolution=_RESOLUTION,
    defaultDuration=_AMOUNT,  # seconds
    maxVideoTokens=_SIZE,
)
_AUDIO = group(
    _MEDIA,
    # The first three are the form of 0.10.
    tokensPerSecond=_AMOUNT,
    overheadTokens=(int, 0),
    defaultBytesPerSecond=_AMOUNT,
    mode=_MODE,
    dynamic=group(tokensPerSecond=_AMOUNT, fixedOverheadTokens=(int, 0), bytesPerSecond=_AMOUNT),
    static=group(staticToken=_SIZE),
    defaultDuration=_AMOUNT,
    maxAudioTokens=_SIZE,
)

if TYPE_CHECKING:
    MediaEstimates = PluginParameters
else:
    MediaEstimates, _ = group(image=_IMAGE, video=_VIDEO, audio=_AUDIO)
