"""Errors of a user's plug-ins in replay, where they refuse requests as in a running picker."""

import traceback
from pathlib import Path

from epp.config.catalogue import PLUGINS
from epp.errors import PickerFault
from epp.policy.profile import Scheduling


def has_user_plugins(scheduling: Scheduling) -> bool:
    """Return whether any plug-in is a user's; if none is, an error is the picker's own."""
    return any(kind not in PLUGINS for kind, _ in scheduling.plugins.values())


def describe(error: BaseException) -> str:
    """Return an error in one line, with its place unless the picker raised it about a plug-in."""
    if isinstance(error, PickerFault):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno} {frame.name}"
    return f"{type(error).__name__}: {error} ({place})"
