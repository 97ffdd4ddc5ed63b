"""The picker as the chart starts it."""

from epp.cli.main import _parser
from tests.charts.helm import only


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
    return _parser().parse_args(container(things)["args"])
