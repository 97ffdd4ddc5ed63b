"""Generated from proto/ by `make proto`; only the codec and `grpc_body` may import it."""
