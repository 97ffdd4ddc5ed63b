"""Options that do not work with several workers."""

from collections.abc import Sequence
from importlib.util import find_spec

from epp.adapters.extproc.transports import native_fault
from epp.adapters.kube.kube_settings import KubeSettings
from epp.app.options import ServeOptions
from epp.errors import ConfigError

_EXTRA = "pip install 'warmpick[replicas]'"


def check(pools: Sequence[ServeOptions]) -> None:
    """Raise `ConfigError` for options that workers cannot have, before they are started."""
    problem = "a single pool: start a process for each pool" if len(pools) > 1 else ""
    problem = problem or _unfit(pools[0])
    if problem:
        raise ConfigError(f"more than 1 requires {problem}", "--workers")


def _unfit(options: ServeOptions) -> str:
    """Return what several workers need and these options lack; empty: nothing.

    Raises `ConfigError` for a secret that is too short.
    """
    if find_spec("zmq") is None:
        return f"pyzmq: {_EXTRA}"
    if options.transport != "native":
        return "--transport native, which alone passes connections to workers"
    fault = native_fault()
    if fault:
        return f"--transport native, which cannot be used here: {fault}"
    if isinstance(options.source, KubeSettings) and options.source.elect:
        return "pickers that all serve: leave out --ha-enable-leader-election"
    if options.hash_secret:
        from epp.adapters.replicas.settings import derive_keys  # noqa: PLC0415 (an extra)

        derive_keys(options.hash_secret)
    events = options.settings.kv_events
    if events is not None and events.zmq_endpoint:
        return (
            "KV events read from each pod: leave out zmqEndpoint, which only one process can bind"
        )
    return ""
