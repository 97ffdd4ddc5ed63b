"""Generated from proto/ by `make proto`; only `epp.protocol.envoy` may import it."""
