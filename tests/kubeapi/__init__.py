"""A Kubernetes API for tests, over real HTTP. `README.md` says what it promises.

async with FakeKubernetes(crds=sorted(CRDS.glob("inference*.yaml"))) as api:
    api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, ...})
    token = api.token("epp", rules=[{"apiGroups": [""], "resources": ["pods"], ...}])
    api.fail(faults.too_many(retry_after=1), verb="list", resource="pods")
    api.drop_watches()
"""

from tests.kubeapi import faults
from tests.kubeapi.fake import FakeKubernetes
from tests.kubeapi.request import Ask
from tests.kubeapi.server import Stream

__all__ = ["Ask", "FakeKubernetes", "Stream", "faults"]
