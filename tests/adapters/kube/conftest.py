import pytest
from structlog.testing import capture_logs

from tests.adapters.kube.rig import POOLS, connected
from tests.kubeapi import FakeKubernetes


@pytest.fixture
async def api():
    """An API server that knows pods and pools."""
    async with FakeKubernetes(crds=POOLS) as made:
        yield made


@pytest.fixture
async def connection(api, tmp_path):
    async with connected(api, tmp_path) as made:
        yield made


@pytest.fixture
def logs():
    with capture_logs() as taken:
        yield taken
