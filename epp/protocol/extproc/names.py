"""What ext_proc calls itself and its headers, and what bytes that are none of its messages raise.

Names of headers and metadata follow the endpoint picker protocol (GIE proposal 004).
"""

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"
DESTINATION = "x-gateway-destination-endpoint"
LB = "envoy.lb"
SUBSET = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED = (LB, "x-gateway-destination-endpoint-served")


class ProtocolError(Exception):
    """The peer sent bytes that are not an ext_proc message."""


def unknown_mode(number: int) -> ProtocolError:
    """Complain of a body mode that is not Envoy's."""
    return ProtocolError(f"unknown body mode {number}")
