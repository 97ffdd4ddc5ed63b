"""A Kubernetes API for tests: every answer is one that Kubernetes 1.36 gives, over real HTTP.

`tests/kubeapi_tests` lists what a real API server does, item by item, and runs on this one and on a
real cluster alike (`KUBECONFIG=... make test-cluster`), so that this one cannot drift into wishful
behaviour.

    async with FakeKubernetes(crds=sorted(CRDS.glob("inference*.yaml"))) as api:
        api.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, ...})
        token = api.token("epp", rules=[{"apiGroups": [""], "resources": ["pods"], ...}])
        api.fail(faults.too_many(retry_after=1), verb="list", resource="pods")
        api.drop_watches()

What is not here: protobuf and CBOR, tables, aggregated discovery, admission, garbage collection,
the schemas of built-in kinds, and CEL beyond the rules of the pinned CRDs (`cel.py`).
"""

from tests.kubeapi import faults
from tests.kubeapi.fake import FakeKubernetes
from tests.kubeapi.request import Ask
from tests.kubeapi.server import Stream

__all__ = ["Ask", "FakeKubernetes", "Stream", "faults"]
