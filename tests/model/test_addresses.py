"""One spelling for each IP address: the one in which Envoy reports endpoints back."""

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.model.endpoint import canonical_ip, canonical_place, target_of

MAPPED = "::ffff:"


def written(address):
    """An address as the C library writes it, which is how Envoy does."""
    return socket.inet_ntop(socket.AF_INET6, address)


@st.composite
def addresses(draw):
    """An address of IPv6 and one of its spellings."""
    groups = draw(st.lists(st.sampled_from([0, 1, 0xA, 0xFFFF, 0x2001]), min_size=8, max_size=8))
    packed = b"".join(group.to_bytes(2, "big") for group in groups)
    form = draw(st.sampled_from(["{:x}", "{:X}", "{:04x}", "{:04X}"]))
    whole = ":".join(form.format(group) for group in groups)
    text = draw(st.sampled_from([whole, written(packed), written(packed).upper()]))
    return packed, text


@given(addresses(), st.integers(1, 65535))
def test_an_address_of_ipv6_is_written_as_envoy_writes_it(made, port):
    packed, text = made
    expected = written(packed)
    if expected.startswith(MAPPED) and "." in expected:
        expected = expected.removeprefix(MAPPED)
    elif packed[:12] == bytes(12) and "." in expected:
        return  # RFC 4291 §2.5.5.1: IPv4-compatible addresses, which nobody has any more
    assert canonical_ip(text) == expected
    assert canonical_place(text) == expected
    assert canonical_place(f"[{text}]:{port}") == target_of(expected, port)


@pytest.mark.parametrize(
    "text", ["", ":", "::x", "10.0.0.1", "10.0.0.1:80", "host:80", "[host]:80:80", "a:b:c"]
)
def test_other_text_stays_as_it_is(text):
    assert canonical_place(text) == text


@pytest.mark.parametrize("text", ["", "10.0.0", "010.0.0.1", "host", "::1]", "[::1]", "fe80::1%"])
def test_what_is_no_address_has_no_canonical_form(text):
    assert canonical_ip(text) is None
