"""The picker in a Python program of your own: `async with open_picker([...]) as picker`."""

from epp.inprocess.opening import open_picker
from epp.inprocess.pick import Pick
from epp.inprocess.picker import InProcessPicker

__all__ = ["InProcessPicker", "Pick", "open_picker"]
