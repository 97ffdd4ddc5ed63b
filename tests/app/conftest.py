"""What tests of the application share."""

import pytest


@pytest.fixture
def digests_when_they_are_wanted(monkeypatch):
    """Replicas compare caches as a test says, and not by the clock."""
    monkeypatch.setattr("epp.app.replicas.copies.DIGEST_SECONDS", 1e6)
