"""What tests of the model share."""

import pytest

from tests.model.caches import pool_rig as poolrig


@pytest.fixture(scope="module", params=poolrig.KINDS, ids=lambda kind: kind.__module__)
def pool_kind(request):
    """Have pools be those of the extension, if it was built, and of the reference in turn."""
    poolrig.kind = request.param
    yield request.param
    poolrig.kind = poolrig.KINDS[0]
