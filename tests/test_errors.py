"""Why something failed, as people read it."""

import errno
import ssl

import pytest

from epp.errors import reason


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOENT, "No such file or directory"), "No such file or directory"),
        (OSError("[Errno 111] Connection refused"), "Connection refused"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION] wrong version (_ssl.c:1006)"), "wrong version"),
        (ssl.SSLError(1, "[X509: NO_CERTIFICATE] no certificate (_ssl.c:4154)"), "no certificate"),
        (TimeoutError("_ssl.c:989: The handshake operation timed out"), "The handshake operation"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_a_reason_has_no_number(error, said):
    assert reason(error).startswith(said)
    assert not any(each.isdigit() for each in reason(error))
