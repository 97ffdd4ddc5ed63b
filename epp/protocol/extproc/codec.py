"""The codec of ext_proc: the compiled one where it was built, else generated code.

`decode` reads one `ProcessingRequest` and raises `ProtocolError`; `encode` writes one
`ProcessingResponse`.
"""

try:
    from epp.protocol.extproc.compiled_codec import decode, encode
except ImportError:
    from epp.protocol.extproc.protobuf import decode, encode

__all__ = ["decode", "encode"]
