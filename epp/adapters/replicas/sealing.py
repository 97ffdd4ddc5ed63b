"""Messages that others keep and carry: encrypted and authenticated by the replicas' secret.

A sealed message is its sender (8 bytes), its number (8 bytes) and the text, encrypted with AES-GCM
under the sender's own key, which is derived from the secret. The nonce is the number, which a
sender uses once; the name of the stream is authenticated with the message.
"""

import os
from collections import defaultdict
from hashlib import blake2b
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from epp.model.learning.bounded import make_room
from epp.protocol.replicas.messages import LONGEST, Dropped, Rejected

SENDER_BYTES: Final = 8
_NUMBER_BYTES: Final = 8
_HEAD_BYTES: Final = SENDER_BYTES + _NUMBER_BYTES
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
SEALED_BYTES: Final = _HEAD_BYTES + _TAG_BYTES
"""How many bytes sealing adds."""
_KEY_BYTES: Final = 32
_MAX_SENDERS: Final = 4096


class _Sender:
    """A sender of messages: its key, and the number of its last message in each stream."""

    def __init__(self, key: AESGCM) -> None:
        self.key: Final = key
        self.last: Final = defaultdict[bytes, int](int)


class Seal:
    """Seals the messages of this replica, whose random name is `sender`; opens those of others."""

    def __init__(self, secret: bytes) -> None:
        self.sender: Final = os.urandom(SENDER_BYTES)
        self._secret: Final = secret
        self._key: Final = self._key_of(self.sender)
        self._number = 0
        self._senders: Final[dict[bytes, _Sender]] = {}

    def seal(self, stream: bytes, message: bytes) -> bytes:
        """Seal a message for a stream."""
        self._number = number = self._number + 1
        sealed = self._key.encrypt(number.to_bytes(_NONCE_BYTES, "big"), message, stream)
        return b"%b%b%b" % (self.sender, number.to_bytes(_NUMBER_BYTES, "big"), sealed)

    def is_own(self, sealed: bytes) -> bool:
        """Whether a sealed message names this replica as its sender."""
        return sealed[:SENDER_BYTES] == self.sender

    def open(
        self, stream: bytes, sealed: bytes, *, remember: bool = True
    ) -> tuple[bytes, int, bytes]:
        """Return the sender, and its message's number and text.

        Raises `Rejected`, for repeated messages too. Without `remember`, a sender that is not known
        stays unknown: anyone can write old messages of many again, in place of those that run.
        """
        if len(sealed) > LONGEST + SEALED_BYTES:
            raise Rejected(Dropped.TOO_LONG)
        if len(sealed) < SEALED_BYTES:
            raise Rejected(Dropped.STRANGER)
        name = sealed[:SENDER_BYTES]
        number = int.from_bytes(sealed[SENDER_BYTES:_HEAD_BYTES], "big")
        sender = self._senders.get(name) or _Sender(self._key_of(name))
        try:
            nonce = number.to_bytes(_NONCE_BYTES, "big")
            message = sender.key.decrypt(nonce, sealed[_HEAD_BYTES:], stream)
        except InvalidTag:
            raise Rejected(Dropped.STRANGER) from None
        if remember and name not in self._senders:
            make_room(self._senders, _MAX_SENDERS)
            self._senders[name] = sender
        if number <= sender.last[stream]:
            raise Rejected(Dropped.REPEATED)
        sender.last[stream] = number
        return name, number, message

    def _key_of(self, sender: bytes) -> AESGCM:
        key = blake2b(sender, key=self._secret, digest_size=_KEY_BYTES, person=b"replica streams")
        return AESGCM(key.digest())
