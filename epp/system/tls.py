"""The contexts of TLS, for all that serves or connects."""

import ssl


def server_tls(least: ssl.TLSVersion, ciphers: str) -> ssl.SSLContext:
    """Return a context for a server, without a certificate yet.

    `least` is the minimum version. `ciphers` are OpenSSL's names of suites up to TLS 1.2, empty for
    its own choice. Raises `OSError` if none of these exists.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = least
    if ciphers:
        context.set_ciphers(ciphers)
    return context


def unverified_tls() -> ssl.SSLContext:
    """Return a context for a client that accepts any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
