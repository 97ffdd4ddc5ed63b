"""Folders for temporary files, and the error if there are none."""

from collections.abc import Iterator
from contextlib import contextmanager

from epp.errors import ConfigError


@contextmanager
def temporary_folder_wanted() -> Iterator[None]:
    """Raise `ConfigError` if making a temporary folder in this context raises `OSError`."""
    try:
        yield
    except OSError:
        problem = "no folder for temporary files can be written; set TMPDIR"
        raise ConfigError(problem) from None
