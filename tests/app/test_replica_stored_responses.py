"""Stored responses that a replica tells of: what cannot be is refused, the latest are kept."""

import msgspec
import pytest

from epp.app.replicas import copies
from epp.model.endpoint import Target
from epp.model.learning.stored_responses import MOST
from epp.protocol.replicas.chains import written_sizes, written_words
from epp.protocol.replicas.facts import StoredReply

ENGINE = "uid", Target("10.0.0.1:8000"), None


@pytest.mark.parametrize(
    ("keys", "places"),
    [
        (bytes(16), bytes(4)),
        (bytes(8), b"\1\0\0\0"),
        (bytes(8), b"\xff\xff\xff\xff"),
        (bytes(7), bytes(4)),
        (bytes(8), bytes(3)),
    ],
)
def test_stored_responses_that_cannot_be_are_told_of_none(keys, places):
    with pytest.raises(ValueError):  # noqa: PT011 (what is nonsense)
        copies.stored_from(StoredReply([ENGINE], keys, places))


def test_of_more_stored_responses_than_are_kept_the_latest_are_taken():
    older, kept = 9, range(9, 9 + MOST)
    keys, places = [*range(older), *kept], [1] * older + [0] * MOST
    told = StoredReply([ENGINE], written_words(keys), written_sizes(places))
    assert copies.stored_from(told).stored == [(key, ENGINE) for key in kept]


def test_more_engines_than_responses_that_are_kept_are_not_read():
    message = msgspec.msgpack.encode(StoredReply([ENGINE] * (MOST + 1), b"", b""))
    with pytest.raises(msgspec.ValidationError, match="length <= 65536"):
        msgspec.msgpack.decode(message, type=StoredReply)
