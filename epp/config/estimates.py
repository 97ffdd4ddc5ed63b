"""Estimates of the lengths of media, as llm-d-router's token-producer has them.

They are read and checked. Here an image, a video or a sound counts as 225 tokens (640 x 360 / 1024,
its default) until the usage that a server reports says how long the prompt was.
"""

from typing import Annotated, Literal

import msgspec

from epp.policy.effects import without_effect
from epp.policy.plugins import PluginParameters

_MEDIA = without_effect(
    "images, videos and sounds count as 225 tokens each, until servers report how long prompts were"
)
_Size = Annotated[int, msgspec.Meta(ge=0)]
_Amount = Annotated[float, msgspec.Meta(ge=0)]
_Mode = Literal["", "dynamic", "static"]


class Resolution(PluginParameters, frozen=True):
    """Pixels."""

    width: _Size = 0
    height: _Size = 0


class Pixels(PluginParameters, frozen=True):
    """A token for this many pixels; 0: 1024."""

    factor: _Size = 0


class TokensOfImage(PluginParameters, frozen=True):
    """As many tokens for any image."""

    static_token: _Size = 0


class TokensOfFrame(PluginParameters, frozen=True):
    """As many tokens for any frame."""

    num_tokens_per_frame: _Size = 0


class ImageEstimate(PluginParameters, frozen=True):
    """The tokens of an image."""

    mode: _Mode = ""
    default_resolution: Resolution | None = None
    dynamic: Pixels | None = None
    static: TokensOfImage | None = None


class FrameEstimate(PluginParameters, frozen=True):
    """The tokens of a frame of a video."""

    mode: _Mode = ""
    dynamic: Pixels | None = None
    static: TokensOfFrame | None = None


class SampledFrames(PluginParameters, frozen=True):
    """A number of frames a second, some of them in one."""

    sample_fps: _Amount = msgspec.field(default=0.0, name="sampleFPS")
    temporal_patch_size: _Size = 0


class StridedFrames(PluginParameters, frozen=True):
    """One frame in every `frame_stride`."""

    default_source_fps: _Amount = msgspec.field(default=0.0, name="defaultSourceFPS")
    frame_stride: _Size = 0


class FrameCount(PluginParameters, frozen=True):
    """The number of frames that count of a video."""

    mode: Literal["", "sampled", "strided"] = ""
    min_frames: _Size = 0
    max_frames: _Size = 0
    sampled: SampledFrames | None = None
    strided: StridedFrames | None = None


class VideoEstimate(PluginParameters, frozen=True):
    """The tokens of a video; its length is in seconds."""

    tokens_per_frame: FrameEstimate | None = None
    frames: FrameCount | None = None
    default_resolution: Resolution | None = None
    default_duration: _Amount = 0.0
    max_video_tokens: _Size = 0


class AudioEstimate(PluginParameters, frozen=True):
    """The tokens of a sound; its length is in seconds."""

    tokens_per_second: _Amount = 0.0
    overhead_tokens: int = 0
    default_bytes_per_second: _Amount = 0.0
    default_duration: _Amount = 0.0
    max_audio_tokens: _Size = 0


class MediaEstimates(PluginParameters, frozen=True):
    """Asks for lengths that are estimated, of prompts that stay text."""

    image: Annotated[ImageEstimate | None, _MEDIA] = None
    video: Annotated[VideoEstimate | None, _MEDIA] = None
    audio: Annotated[AudioEstimate | None, _MEDIA] = None
