"""The ext_proc service over two transports that behave alike: grpc.aio, and HTTP/2 over nghttp2."""
