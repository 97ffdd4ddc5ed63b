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
    """Sizes and times of list and watch; times in seconds."""

    page_size: int = 100
    """The objects of one page of a list."""
    min_backoff: float = 0.2
    """The pause after a failure; it doubles with each further one."""
    max_backoff: float = 10.0
    """The longest pause after failures."""
    probe_delay: float = 1.0
    """The pause after what is refused at once (nothing listens, 401, 403), by one watch for all."""
    refused_delay: float = 30.0
    """The longest pause for what was refused and never listed, for which it doubles; the pause for
    kinds that are not installed (404); how long a first list is waited for after a failure."""
    request_timeout: float = 30.0
    """Limits a page of a list, or the wait for a watch's headers."""
    idle_timeout: float = 90.0
    """For how long a watch may be silent; servers send bookmarks about once a minute."""
    watch_timeout: float = 240.0
    """How long a watch is asked to last: between this and twice this."""


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
