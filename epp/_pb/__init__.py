"""Generated from proto/ by `make proto`; only `epp.protocol.extproc.protobuf` may import it."""
