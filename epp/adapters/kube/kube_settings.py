"""What following a pool goes by. Importing this imports no client of the Kubernetes API."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from epp.protocol.kube.election import LeaderElectionConfig

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class KubeAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look, in the order of controller-runtime.

    The file named by `kubeconfig` (or several, separated by colons), those named by `KUBECONFIG`
    in `environ`, the service account of the pod that this runs in, and `~/.kube/config`.
    """

    kubeconfig: str = ""
    environ: Mapping[str, str] = os.environ
    service_account: Path = _SERVICE_ACCOUNT


class ReflectorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long, in seconds, but for `page`: objects listed at once.

    `least` and `most` bound the delay after failures; after a refusal that stays until somebody
    changes something (403, 404) it is `slow`. `request` is what a list's page or a watch's
    headers may take, `idle` what a watch may say nothing for (servers send bookmarks about once a
    minute), `watch` how long one is asked to last, up to twice of it.
    """

    page: int = 100
    least: float = 0.2
    most: float = 10.0
    slow: float = 30.0
    request: float = 30.0
    idle: float = 90.0
    watch: float = 240.0


class KubeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which pool, and how.

    With `selector` there need be no InferencePool: pods with these labels are endpoints at
    `ports`, and `pool` is only a name. `elect` asks for one leader among the replicas, `terms`
    say how (their identity is filled in).
    """

    namespace: str
    pool: str
    selector: Mapping[str, str] | None = None
    ports: tuple[int, ...] = ()
    elect: bool = False
    access: KubeAccess = KubeAccess()
    pace: ReflectorSettings = ReflectorSettings()
    terms: LeaderElectionConfig = LeaderElectionConfig(identity="")
