"""The registry of plug-ins: their classes by type, users' own too, built from parameters.

Any exception from a plug-in's code while a file is read is an error of that file.
"""

import inspect
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec

from epp.config.catalogue import PLUGINS, REMOVED
from epp.config.schema import as_go_reads, check_numbers, near
from epp.errors import ConfigError
from epp.policy import attribute_sources, plugins
from epp.policy.flow import fairness, orders, usage_limits
from epp.protocol.conversion import convert, fields_at

ENTRY_POINTS = "warmpick.plugins"
"""The entry point group of users' plug-ins."""
Calls = Mapping[str, tuple[str, ...]]
"""Methods that the picker calls, each with its arguments."""
_SCHEDULED: Calls = {
    "filter": ("request", "candidates"),
    "score": ("request", "candidates"),
    "pick": ("candidates", "totals", "context"),
}
"""The methods of plug-ins that a profile names."""
_ALWAYS: Mapping[type[Any], Calls] = {
    plugins.ProfileHandler: {"schedule": ("request", "run"), "check_profiles": ("names",)},
    plugins.Screener: {"screen": ("request", "candidates")},
    plugins.Admitter: {"admit": ("request", "candidates")},
    plugins.RequestProcessor: {"process_request": ("request",)},
    plugins.RequestHeaderSource: {"request_headers": ("request", "decision", "candidates")},
    plugins.CommitObserver: {"committed": ("request", "decision", "now")},
    plugins.ResponseProcessor: {"response_headers": ("request", "decision", "served")},
    plugins.UsageReporter: {"report": ("usage",)},
    plugins.StateDumper: {"dump_state": ()},
}
"""The methods, by kind, of every plug-in that has them."""
_KINDS = tuple(
    kind
    for module in (plugins, attribute_sources, fairness, orders, usage_limits)
    for kind in vars(module).values()
    if getattr(kind, "_is_runtime_protocol", False)
)
"""All kinds of plug-in, including those that only other plug-ins call."""


def plugin_class(kind: str, place: str) -> type[Any]:
    """Return the class of a plug-in's name. Raises `ConfigError` that suggests similar names."""
    if kind in PLUGINS:
        return PLUGINS[kind]
    if kind in REMOVED:
        raise ConfigError(f"GIE has removed `{kind}`; write {REMOVED[kind]} instead", place)
    from importlib.metadata import entry_points  # noqa: PLC0415 (slow to load, rarely needed)

    known = [*PLUGINS, *(each.name for each in entry_points(group=ENTRY_POINTS))]
    raise ConfigError(f"unknown plug-in type `{kind}`{near(kind, known)}", place)


def users_class(name: str, place: str) -> type[Any] | None:
    """Return the class that a user registered under a name; None without one.

    Names of built-in plug-ins cannot be taken. Raises `ConfigError` whatever the import raises.
    """
    if name in PLUGINS:
        return None
    from importlib.metadata import entry_points  # noqa: PLC0415 (slow to load, rarely needed)

    for entry in entry_points(group=ENTRY_POINTS, name=name):
        with plugin_code(f"`{entry.value}` cannot be imported", place):
            found = entry.load()
        if not (isinstance(found, type) and issubclass(found, msgspec.Struct)):
            raise ConfigError(f"`{entry.value}` is not a msgspec.Struct", place)
        return found
    return None


def build(kind: type[Any], parameters: dict[str, Any], place: str) -> Any:  # noqa: ANN401 (any plug-in)
    """Return a plug-in's struct with the parameters. Raises `ConfigError` that names the place."""
    try:
        read = as_go_reads(parameters, kind)
        check_numbers(read, "")  # those that were written with an exponent were text
        return convert(read, kind)
    except ConfigError as error:
        within = f"{place}.{error.place}" if error.place else place
        raise ConfigError(_explain(error, kind), within) from None


def _explain(error: ConfigError, kind: type[Any]) -> str:
    unknown = error.problem.partition("unknown field `")[2].partition("`")[0]
    if not unknown:
        return error.problem
    known = fields_at(kind, error.place)
    accepted = f"; it takes {', '.join(known)}" if known else "; it takes none"
    return f"unknown parameter `{unknown}`{near(unknown, known) or accepted}"


# The code of plug-ins.


def check_scheduled(plugin: object, place: str) -> None:
    """Raise `ConfigError` for a profile's plug-in that the picker cannot call."""
    _check_methods(plugin, _SCHEDULED, place)


def check_called(plugin: object, place: str) -> None:
    """Raise `ConfigError` for a plug-in with a method that the picker cannot call."""
    for kind, calls in _ALWAYS.items():
        if isinstance(plugin, kind):
            _check_methods(plugin, calls, place)


def _check_methods(plugin: object, calls: Calls, place: str) -> None:
    for name, given in calls.items():
        method = getattr(plugin, name, None)
        if not callable(method):
            continue
        if inspect.iscoroutinefunction(method):
            raise ConfigError(f"`{name}` is async, and the picker does not await it", place)
        try:
            inspect.signature(method).bind(*given)
        except TypeError:
            told = ", ".join(given)
            raise ConfigError(f"`{name}` cannot be called with ({told})", place) from None
        except ValueError:  # compiled code may have no signature
            continue


def is_idle(struct: object) -> bool:
    """Return whether a plug-in has no method that anything calls."""
    return not isinstance(struct, _KINDS)


class _Interrupted(KeyboardInterrupt):
    """Ctrl-C, as opposed to a `KeyboardInterrupt` that a plug-in raises."""


@contextmanager
def plugin_code(fails: str, place: str) -> Iterator[None]:
    """Turn any exception except Ctrl-C into a `ConfigError` at `place` that names what `fails`."""
    try:
        with _distinct_interrupt():
            yield
    except (ConfigError, _Interrupted):
        raise
    except BaseException as error:
        raise ConfigError(f"{fails}: {_said(error)}", place) from error


def _said(error: BaseException) -> str:
    try:
        return repr(error)
    except BaseException:  # noqa: BLE001 (the plug-in's own, again)
        return type(error).__name__


@contextmanager
def _distinct_interrupt() -> Iterator[None]:
    """Make Ctrl-C raise `_Interrupted` instead of `KeyboardInterrupt`."""
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(*_: object) -> NoReturn:
    raise _Interrupted
