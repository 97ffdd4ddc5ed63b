"""What the items are asked of: `make test-cluster` asks a real cluster."""

import pytest

from tests.kubeapi import FakeKubernetes
from tests.kubeapi.tests.cluster import CRDS, REAL, Cluster, opened


@pytest.fixture
async def cluster(tmp_path):
    """A fresh namespace, with the CRDs of manifests/ installed."""
    if REAL:
        async with opened(None, tmp_path) as found:
            yield found
        return
    async with FakeKubernetes(crds=CRDS) as fake, opened(fake, tmp_path) as found:
        yield found


@pytest.fixture
async def api():
    """The tests' Kubernetes API for clients that speak TLS, whatever the items are asked of."""
    async with FakeKubernetes(crds=CRDS, tls=True) as found:
        yield found


@pytest.fixture
def fake(cluster: Cluster) -> FakeKubernetes:
    """For items that need what no real cluster does on demand."""
    if cluster.fake is None:
        pytest.skip(
            "NOT TESTED: a fault, which a real cluster does not have on demand: `make unit` asks"
            " the tests' Kubernetes API"
        )
    return cluster.fake
