"""The picker as the chart starts it."""

import functools

from epp.cli.go_arguments import with_command
from epp.cli.main import _parser

parser = functools.cache(_parser)


def containers(pod):
    """The containers of a pod's spec that run as long as it does, sidecar containers among them."""
    beside = [each for each in pod.get("initContainers", ()) if "restartPolicy" in each]
    return [*pod["containers"], *beside]


def container(things):
    """The picker's container."""
    (found,) = [
        each
        for thing in things
        if thing["kind"] in {"Deployment", "StatefulSet"}
        for each in thing["spec"]["template"]["spec"]["containers"]
        if each["name"] == "epp"
    ]
    return found


def arguments(things):
    """The rendered arguments as the picker's own parser reads them."""
    return parser().parse_args(with_command(container(things)["args"]))
