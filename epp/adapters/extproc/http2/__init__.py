"""HTTP/2 and gRPC framing in C extensions, over nghttp2."""
