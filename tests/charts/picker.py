"""The picker as the chart starts it."""

from epp.cli import _parser
from tests.charts.helm import only

TO_COME = "--metrics-endpoint-auth="
"""The one flag that `epp serve` may still not know."""


def container(things):
    """The picker's container."""
    (found,) = [
        each
        for each in only(things, "Deployment")["spec"]["template"]["spec"]["containers"]
        if each["name"] == "epp"
    ]
    return found


def arguments(things):
    """The rendered arguments as the picker's own parser reads them."""
    read, unknown = _parser().parse_known_args(container(things)["args"])
    assert [each for each in unknown if not each.startswith(TO_COME)] == []
    return read
