"""TLS for HTTP/2, with a certificate that can be renewed."""

import os
import ssl


def server_context(key: bytes, chain: bytes) -> ssl.SSLContext:
    """Make a context that serves HTTP/2 with a pair of PEM texts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    load_pair(context, key, chain)
    return context


def load_pair(context: ssl.SSLContext, key: bytes, chain: bytes) -> None:
    """Let a context serve with a pair of PEM texts from the next handshake on.

    It only reads files; this one is in memory and has no name.
    """
    number = os.memfd_create("certificate")
    try:
        os.write(number, key + b"\n" + chain)
        context.load_cert_chain(f"/proc/self/fd/{number}")
    finally:
        os.close(number)
