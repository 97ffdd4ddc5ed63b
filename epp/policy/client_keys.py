"""Keys of what clients name: sessions, users, flows. A name may be as long as headers are."""

ClientKey = int
"""64 bits, whatever the length of the name."""


def client_key(name: str) -> ClientKey:
    """Return the key under which a client's name is kept.

    SipHash under a secret of the process (PEP 456): no client can choose two names of one key.
    """
    return hash(name)
