"""Loads structlog without rich, whatever else is installed; to be imported before structlog is.

structlog would load it for tracebacks that no service shows: a fifth of a start.
"""

import sys

_loaded = "rich" in sys.modules
if not _loaded:
    sys.modules["rich"] = None  # type: ignore[assignment]  # what import takes for "not there"
import structlog  # noqa: E402, F401 (the point of it)

if not _loaded:
    del sys.modules["rich"]
