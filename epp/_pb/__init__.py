"""Generated from proto/ by `make proto`; only `epp.protocol.protobuf` may import it."""
