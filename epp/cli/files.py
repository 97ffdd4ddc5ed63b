"""Reads the files that flags name; a `ConfigError` names the flag of one that cannot be read."""

import signal
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from epp.config.file import POLICIES, Settings, load
from epp.config.schema import near
from epp.errors import ConfigError
from epp.printable import printable
from epp.system.temporary import temporary_folder_wanted

_MAX_BYTES = 16 << 20
_PART_BYTES = 1 << 16
_STDIN = Path("-")
_STDIN_NAME = "standard input"


def read(path: Path, flag: str, *, stdin: bool = False) -> bytes:
    """Return the content of a file, which may be a pipe: `epp check <(...)`.

    With `stdin` the path `-` stands for standard input.
    """
    try:
        given = stdin and path == _STDIN
        with open(0, "rb", closefd=False) if given else path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", flag) from None
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path} is longer than {_MAX_BYTES} bytes", flag)
    return content


@contextmanager
def with_stdin(words: Sequence[str], most: int) -> Iterator[list[str]]:
    """Replace each `-` among the words by the path of a file with the content of standard input.

    Raises `ConfigError` if it cannot be read, and for more than `most` bytes. One that is raised
    within names standard input in place of that file.
    """
    if str(_STDIN) not in words:
        yield list(words)
        return
    from tempfile import TemporaryDirectory  # noqa: PLC0415 (slow, and a picker needs none)

    with temporary_folder_wanted():
        folder = TemporaryDirectory(prefix="epp-stdin-")
    with folder as name, _called_if_ended(folder.cleanup):
        path = Path(name) / "stdin"
        with path.open("wb") as file:
            for part in _parts_of_stdin(most):
                file.write(part)
        try:
            yield [str(path) if word == str(_STDIN) else word for word in words]
        except ConfigError as error:
            told = (each.replace(str(path), _STDIN_NAME) for each in (error.problem, error.place))
            raise ConfigError(*told) from None


@contextmanager
def _called_if_ended(call: Callable[[], object]) -> Iterator[None]:
    """Make a call before an unhandled signal ends this process."""

    def end(number: int, _frame: object) -> None:
        call()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    fatal = signal.SIGTERM, signal.SIGHUP
    unhandled = [each for each in fatal if signal.getsignal(each) is signal.SIG_DFL]
    for each in unhandled:
        signal.signal(each, end)
    try:
        yield
    finally:
        for each in unhandled:
            signal.signal(each, signal.SIG_DFL)


def _parts_of_stdin(most: int) -> Iterator[bytes]:
    left = most
    try:
        with open(0, "rb", closefd=False) as file:
            while part := file.read1(_PART_BYTES):
                left -= len(part)
                if left < 0:
                    raise ConfigError(f"{_STDIN_NAME} is longer than {most} bytes")
                yield part
    except OSError as error:
        raise ConfigError(f"cannot read {_STDIN_NAME}: {error.strerror}") from None


def read_text(path: Path, flag: str, *, stdin: bool = False) -> str:
    """Return the text of a file in UTF-8; see `read`."""
    try:
        return read(path, flag, stdin=stdin).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason}", flag) from None


def hash_secret(path: Path) -> bytes:
    """Return the secret of a file: it keys hashes of blocks, which take 64 bytes at most."""
    secret = read(path, "--hash-secret-file").strip()[:64]
    if not secret:
        raise ConfigError(f"{path} is empty", "--hash-secret-file")
    return secret


@contextmanager
def named(file: str) -> Iterator[None]:
    """Make errors in a file's content begin with its name, or with its flag and name."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(str(error), file) from None


class PolicyFile(NamedTuple):
    """A policy from a configuration file: its name, its text, and its settings."""

    name: str
    text: str
    settings: Settings


def policy_settings(given: str, flag: str) -> tuple[str, Settings]:
    """Return the name and the settings of a policy: one of `POLICIES`, or `[LABEL=]FILE`."""
    if given in POLICIES:
        return given, load(POLICIES[given])
    file = policy_file(given, POLICIES, flag)
    return file.name, file.settings


def policy_file(given: str, known: Collection[str], flag: str) -> PolicyFile:
    """Read the policy `[LABEL=]FILE`, whose name is the label, or that of the file.

    `known` are the named policies, which an error suggests if one of them may have been meant.
    """
    label, _, place = given.rpartition("=")
    path = Path(place)
    try:
        text = read_text(path, flag)
    except ConfigError as error:
        problem = f"`{given}` is not a policy ({', '.join(known)}); as a file: {error.problem}"
        raise ConfigError(problem + near(given, known), flag) from None
    try:
        return PolicyFile(printable(label or path.stem), text, load(text))
    except ConfigError as error:
        raise ConfigError(str(error), f"{flag} {given}") from None
