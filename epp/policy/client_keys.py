"""Keys for names that clients choose, of sessions, users and flows, which may be very long."""

ClientKey = int
"""64 bits, whatever the length of the name."""


def client_key(name: str) -> ClientKey:
    """Return the key under which a client's name is kept.

    SipHash under a secret of the process (PEP 456): no client can choose two names of one key.
    """
    return hash(name)
