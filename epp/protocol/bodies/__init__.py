"""Bodies of HTTP and gRPC APIs: requests read for routing, responses read for usage."""
