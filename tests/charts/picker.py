"""The picker as the chart starts it."""

import functools
import re

from epp.cli.go_arguments import with_command
from epp.cli.main import _options, _parser
from epp.cli.several_pools import pools_of

parser = functools.cache(_parser)


def containers(pod):
    """The containers of a pod's spec that run as long as it does, sidecar containers among them."""
    beside = [each for each in pod.get("initContainers", ()) if "restartPolicy" in each]
    return [*pod["containers"], *beside]


def _spec(things):
    """The spec of the picker's pod."""
    (found,) = [
        spec
        for thing in things
        if thing["kind"] in {"Deployment", "StatefulSet"}
        for spec in [thing["spec"]["template"]["spec"]]
        if any(each["name"] == "epp" for each in spec["containers"])
    ]
    return found


def container(things):
    """The picker's container."""
    (found,) = [each for each in _spec(things)["containers"] if each["name"] == "epp"]
    return found


def arguments(things):
    """The rendered arguments as the picker's own parser reads them."""
    return parser().parse_args(with_command(container(things)["args"]))


def options(things, folder):
    """What the picker's command makes of its arguments and files, which are put below `folder`.

    Raises `ConfigError` or `SystemExit` if it would end at once.
    """
    places = _mounted(things, folder)
    words = [_placed(word, places) for word in container(things)["args"]]
    given = parser().parse_args(with_command(words))
    given.others = ()
    return [_options(each) for each in pools_of(given)]


def _mounted(things, folder):
    """Write the volumes of the picker; return their folders by their places in the container."""
    maps = {thing["metadata"]["name"]: thing for thing in things if thing["kind"] == "ConfigMap"}
    volumes = {each["name"]: each for each in _spec(things)["volumes"]}
    places = {}
    for mount in container(things)["volumeMounts"]:
        volume = volumes[mount["name"]]
        place = places[mount["mountPath"]] = folder / mount["mountPath"].strip("/")
        place.mkdir(parents=True)
        if "configMap" in volume:
            for name, text in maps[volume["configMap"]["name"]]["data"].items():
                (place / name).write_text(text)
        for name in ("secret", "password") if "secret" in volume else ():
            (place / name).write_text("x" * 44)
    return places


def _placed(word, places):
    found = re.fullmatch(r"(--[a-z-]+=)(/[a-z-]+)(.*)", word)
    if found and found[2] in places:
        return f"{found[1]}{places[found[2]]}{found[3]}"
    return word
