"""Settings of discovery in Kubernetes. Importing this imports no client of the Kubernetes API."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from epp.protocol.kube.election import LeaderElectionConfig
from epp.protocol.kube.objects import GATEWAY_GROUP

# Kubernetes mounts a pod's token and the cluster's CA certificate here.
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Sources of the API server's address and of credentials, in controller-runtime's order.

    The file named by `kubeconfig` (or several, separated by colons), those named by `KUBECONFIG`
    in `environ`, the service account of the pod that this runs in, and `~/.kube/config`.
    """

    kubeconfig: str = ""
    environ: Mapping[str, str] = os.environ
    service_account: Path = _SERVICE_ACCOUNT


class ReflectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times of list and watch; times in seconds.

    `page_size` is the objects of one page of a list. Failures are retried after `min_backoff`,
    doubling up to `max_backoff`. What is refused at once (nothing listens, 401, 403) is asked again
    every `probe_delay`, by one watch for all; for a resource that was never listed the delay
    doubles up to `refused_delay`, which is the delay for kinds that are not installed (404), too,
    and how long the first list of a kind is waited for once it has failed.
    `request_timeout` limits a page of a list, or the wait for a
    watch's headers. A watch that is silent for `idle_timeout` is broken (servers send bookmarks
    about once a minute). A watch is asked to last between `watch_timeout` and twice that.
    """

    page_size: int = 100
    min_backoff: float = 0.2
    max_backoff: float = 10.0
    probe_delay: float = 1.0
    refused_delay: float = 30.0
    request_timeout: float = 30.0
    idle_timeout: float = 90.0
    watch_timeout: float = 240.0


class KubeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The pool to follow, and how."""

    namespace: str
    """The pool's namespace."""
    pool: str
    """The pool's name; with `selector` it is only a name."""
    pool_group: str = GATEWAY_GROUP
    """The pool's API group, one of `POOL_GROUPS`."""
    selector: Mapping[str, str] | str | None = None
    """Labels of the pods that are endpoints, or a selector in the API's own form.

    With one, no InferencePool is read; None: the InferencePool's."""
    ports: tuple[int, ...] = ()
    """The ports of these pods."""
    elect: bool = False
    """Whether one leader is elected among the replicas."""
    access: KubeAccess = KubeAccess()
    """How the API is reached."""
    reflector: ReflectorSettings = ReflectorSettings()
    """How resources are followed."""
    election: LeaderElectionConfig = LeaderElectionConfig(identity="")
    """How the election is timed; an empty `identity` stands for a generated one."""
