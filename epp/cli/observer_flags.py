"""The flags `--record`, `--shadow` and `--tracing`."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from epp.cli.configuration import policy_name
from epp.cli.files import policy_settings
from epp.cli.types import BOOL, SIZE
from epp.config.file import Settings
from epp.errors import ConfigError, reason

if TYPE_CHECKING:  # its import takes long, and `epp --help` does not wait for it
    from epp.adapters.recording.writer import RecordingSettings
    from epp.adapters.tracing.settings import TracingSettings

_MIN_RECORDING = 1 << 20


def add_observers(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    group = parser.add_argument_group("recording, comparing and tracing")
    group.add_argument(
        "--record",
        type=Path,
        metavar="DIR",
        help="record hashes, lengths, times, decision and outcome of each request in this folder,"
        " never text; `epp replay` reads it",
    )
    group.add_argument(
        "--record-max-bytes",
        **SIZE,
        default=1 << 30,
        help="size of a pool's recordings beyond which the oldest are deleted (default: 1Gi)",
    )
    group.add_argument(
        "--shadow",
        metavar="POLICY",
        help="a policy to compare with the live one, by name or [LABEL=]FILE (an"
        " EndpointPickerConfig); agreement and predicted gain are in /metrics and logged each"
        " minute",
    )
    group.add_argument(
        "--tracing",
        **BOOL,
        default=False,
        help="export OpenTelemetry spans of a tenth of the requests over OTLP, as the OTEL_"
        " variables say (default: false)",
    )


def flags_of(arguments: argparse.Namespace) -> list[str]:
    """Check the flags, and return them as command-line words. Raises `ConfigError`."""
    _check_recording(arguments)
    shadow_of(arguments)
    flags = [f"--shadow={arguments.shadow}"] if arguments.shadow is not None else []
    flags += ["--tracing"] if arguments.tracing else []
    if arguments.record is None:
        return flags
    record, most = arguments.record.absolute(), arguments.record_max_bytes
    return [f"--record={record}", f"--record-max-bytes={most}", *flags]


def _check_recording(arguments: argparse.Namespace) -> None:
    if arguments.record is None:
        return
    if arguments.record_max_bytes < _MIN_RECORDING:
        raise ConfigError(
            f"{arguments.record_max_bytes} bytes are too few for a recording; write 1Mi or more",
            "--record-max-bytes",
        )
    from epp.adapters.recording.parts import check_folder  # noqa: PLC0415 (see above)

    try:
        check_folder(arguments.record)
    except OSError as error:
        problem = f"cannot write to the folder {arguments.record}: {reason(error)}"
        raise ConfigError(problem, "--record") from error


def recording_of(
    arguments: argparse.Namespace, pool: str, base_model: str
) -> "RecordingSettings | None":
    """Return the settings of the recording; None without one. Raises `ConfigError`."""
    if arguments.record is None:
        return None
    _check_recording(arguments)
    from epp.adapters.recording.writer import RecordingSettings  # noqa: PLC0415 (see above)

    return RecordingSettings(
        folder=arguments.record,
        most_bytes=arguments.record_max_bytes,
        pool=pool,
        configuration=Path(policy_name(arguments)).name,
        base_model=base_model,
    )


def shadow_of(arguments: argparse.Namespace) -> tuple[str, Settings] | None:
    """Return the shadow's name and configuration; None without one. Raises `ConfigError`."""
    return None if arguments.shadow is None else policy_settings(arguments.shadow, "--shadow")


def tracing_of(
    arguments: argparse.Namespace, environ: Mapping[str, str], pool: str
) -> "TracingSettings | None":
    """Return the settings of tracing; None if requests are not traced."""
    if not arguments.tracing:
        return None
    from epp.adapters.tracing.settings import tracing_settings  # noqa: PLC0415 (see above)

    return tracing_settings(environ, pool)
