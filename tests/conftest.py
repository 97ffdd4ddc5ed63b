"""Settings of the test run as a whole, and what it says at its end."""

from hypothesis import settings

from epp import compiled
from epp.native import summary
from tests.native.built import FAULTS

# Speed is measured in bench/, never in a test.
settings.register_profile("warmpick", deadline=None)
settings.load_profile("warmpick")


def pytest_terminal_summary(terminalreporter):
    """Say loudly which kernels were tested, and instead of which only their twins."""
    terminalreporter.write_line(
        f"native kernels tested: {summary()}", yellow=bool(FAULTS), green=not FAULTS, bold=True
    )
    fault = compiled.FAULT
    terminalreporter.write_line(
        f"modules compiled as they stand tested: {fault or 'all'}", yellow=bool(fault), bold=True
    )
