"""Folders for temporary files, and what is said where there are none."""

from collections.abc import Iterator
from contextlib import contextmanager

from epp.errors import ConfigError


@contextmanager
def temporary_folder_wanted() -> Iterator[None]:
    """Raise `ConfigError` if what makes a temporary folder within raises `OSError`."""
    try:
        yield
    except OSError:
        problem = "no folder for temporary files can be written; set TMPDIR"
        raise ConfigError(problem) from None
