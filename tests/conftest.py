"""Settings of the test run as a whole."""

from hypothesis import settings

# Speed is measured in bench/, never in a test.
settings.register_profile("warmpick", deadline=None)
settings.load_profile("warmpick")
