"""Names of the ext_proc service, and of the headers and metadata that it reads and writes.

Names of headers and metadata follow the endpoint picker protocol (GIE proposal 004).
"""

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
METHOD = "Process"
DESTINATION = "x-gateway-destination-endpoint"
SCORES = "x-gateway-destination-endpoint-scores"
LB = "envoy.lb"
SUBSET = ("envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset")
SERVED = (LB, "x-gateway-destination-endpoint-served")
