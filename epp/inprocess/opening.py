"""Opens a picker with the names and defaults of the flags of `epp serve`."""

import os
import warnings
from collections.abc import Iterable
from pathlib import Path

import msgspec

from epp.adapters.recording.parts import check_folder
from epp.adapters.recording.writer import RecordingSettings
from epp.app.options import ServeOptions
from epp.config.file import DEFAULT_POLICY, POLICIES, Settings, load
from epp.errors import ConfigError, reason
from epp.inprocess.picker import Given, InProcessPicker
from epp.model.endpoint import Endpoint


def open_picker(  # noqa: PLR0913 (one for each flag)
    endpoints: Given | Iterable[Given] | Path | None = None,
    *,
    config: str | os.PathLike[str] | None = None,
    config_text: str = "",
    policy: str = DEFAULT_POLICY,
    pool_name: str = "default",
    hold: bool = True,
    hold_timeout: float = 240.0,
    hold_empty_timeout: float = 0.0,
    eject_after: int = 5,
    scrape_interval: float = 1.0,
    max_body_bytes: int = 64 << 20,
    hash_secret: bytes = b"",
    record: str | os.PathLike[str] | None = None,
    metrics_port: int | None = None,
    unreachable: tuple[type[BaseException], ...] = (ConnectionError,),
) -> InProcessPicker:
    """Return a picker, which `async with` opens: its requests go to these endpoints.

    Arguments have the names and the defaults of `epp serve`'s flags; times are in seconds.
    Raises `ConfigError` for an argument that cannot be used.

    Args:
        endpoints: the model servers, each as `host:port`, a URL, or a mapping as in an endpoints
            file; a host name is resolved once, and each of its addresses is an endpoint. Or the
            `Path` of an endpoints file, which is followed. None: the file that the configuration
            names; without one, none until `set_endpoints`.
        config: the path of an `EndpointPickerConfig`.
        config_text: the same as YAML.
        policy: a policy by name, in place of a configuration.
        pool_name: the pool's name in metrics.
        hold: a request waits while its best endpoint has no room; False: it never does.
        hold_timeout: a request that has waited this long is sent all the same.
        hold_empty_timeout: how long requests wait for a first endpoint; 0: they are refused (503).
        eject_after: an endpoint that failed this many times in a row is left out for a while; 0:
            never.
        scrape_interval: how often each endpoint's metrics page is read.
        max_body_bytes: larger bodies are refused (413).
        hash_secret: keys hashes of prompts; empty: a random one.
        record: the folder that traffic is recorded in, for `epp replay`; None: nowhere.
        metrics_port: a port of this machine that serves metrics, the console, and `epp explain`; 0:
            any; None: none.
        unreachable: exceptions that blame the endpoint if they leave a pick's block before the head
            of a response is reported: those of the HTTP client for connections that break, or
            cannot be made.

    """
    settings = _settings(config, config_text, policy)
    _check("scrape_interval", scrape_interval, scrape_interval > 0, "an interval in seconds")
    _check("hold_timeout", hold_timeout, hold_timeout >= 0, "a number of seconds")
    empty_ok = hold_empty_timeout >= 0
    _check("hold_empty_timeout", hold_empty_timeout, empty_ok, "a number of seconds")
    _check("eject_after", eject_after, eject_after >= 0, "a number of 0 or more")
    _check("max_body_bytes", max_body_bytes, max_body_bytes >= 0, "a number of 0 or more")
    recording = None
    if record is not None:
        recording = RecordingSettings(
            folder=_writable(Path(record)),
            pool=pool_name,
            configuration=str(config or ("config_text" if config_text else policy)),
            base_model=settings.base_model,
        )
    for warning in settings.warnings:
        warnings.warn(warning, stacklevel=2)
    source: Path | tuple[Endpoint, ...] = ()
    if isinstance(endpoints, Path):
        source = endpoints
    elif endpoints is None and settings.endpoints_file:
        source = Path(settings.endpoints_file)
    options = ServeOptions(
        settings=settings,
        source=source,
        pool_name=pool_name,
        max_body_bytes=max_body_bytes,
        eject_after=eject_after,
        scrape_interval=scrape_interval,
        hash_secret=hash_secret,
        recording=recording,
        flow=msgspec.structs.replace(
            settings.flow,
            holds=hold,
            most_seconds=hold_timeout,
            empty_seconds=hold_empty_timeout or settings.flow.empty_seconds,
        ),
    )
    given = () if endpoints is None or isinstance(endpoints, Path) else endpoints
    return InProcessPicker(options, given, metrics_port=metrics_port, unreachable=unreachable)


def _check(name: str, value: float, usable: bool, meaning: str) -> None:  # noqa: FBT001 (a check)
    if not usable:
        raise ConfigError(f"{value!r} is not {meaning}", name)


def _writable(folder: Path) -> Path:
    try:
        check_folder(folder)
    except OSError as error:
        raise ConfigError(
            f"cannot write to the folder {folder}: {reason(error)}", "record"
        ) from error
    return folder


def _settings(config: str | os.PathLike[str] | None, text: str, policy: str) -> Settings:
    if config is not None and text:
        raise ConfigError("give only one of these", "config and config_text")
    if policy not in POLICIES:
        raise ConfigError(f"`{policy}` is not one of {', '.join(POLICIES)}", "policy")
    if policy != DEFAULT_POLICY and (config is not None or text):
        raise ConfigError("give only one of these", "policy and config, or config_text")
    if config is not None:
        try:
            text = Path(config).read_text()
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot be read: {reason(error)}", str(config)) from error
    return load(text or POLICIES[policy])
