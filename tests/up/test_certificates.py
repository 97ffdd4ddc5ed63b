import os
import time

import pytest

from epp.adapters.tls import certificate
from epp.errors import ConfigError
from epp.up.certificates import ServedCertificate, authorities
from epp.up.proxy import CERTIFICATE_FILE

QUICK_SECONDS = 1


@pytest.fixture
def files(tmp_path):
    key, chain = certificate(None)
    (tmp_path / "key").write_bytes(key)
    (tmp_path / "cert").write_bytes(chain)
    return tmp_path / "cert", tmp_path / "key"


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_that_becomes_no_file_is_refused_at_once(make, place, files, tmp_path):
    served = ServedCertificate(files[0], files[1], tmp_path)
    assert served.load()
    assert not served.load()
    shown = (tmp_path / CERTIFICATE_FILE).read_text()
    good = files[place].read_bytes()
    files[place].unlink()
    make(files[place])
    began = time.monotonic()
    with pytest.raises(ConfigError, match=r"--tls-(cert|key) .*: it is not a regular file"):
        served.load()
    with pytest.raises(ConfigError, match=r"--upstream-ca-file .*: it is not a regular file"):
        authorities(files[place])
    assert time.monotonic() - began < QUICK_SECONDS
    files[place].rename(tmp_path / "away")
    files[place].write_bytes(good)
    assert not served.load()
    assert (tmp_path / CERTIFICATE_FILE).read_text() == shown


def test_a_key_of_another_certificate_is_refused_and_a_new_pair_is_shown(files, tmp_path):
    chain, key = files
    served = ServedCertificate(chain, key, tmp_path)
    assert served.load()
    before = (tmp_path / CERTIFICATE_FILE).read_text()
    other_key, other_chain = certificate(None)
    key.write_bytes(other_key)
    with pytest.raises(ConfigError, match=r"--tls-key .*key: the key does not belong to"):
        served.load()
    chain.write_bytes(other_chain)
    assert served.load()
    assert (tmp_path / CERTIFICATE_FILE).read_text() != before


def test_a_new_pair_is_shown_after_a_disk_that_was_full(files, tmp_path):
    chain, key = files
    served = ServedCertificate(chain, key, tmp_path)
    assert served.load()
    before = (tmp_path / CERTIFICATE_FILE).read_text()
    for path, text in zip((key, chain), certificate(None), strict=True):
        path.write_bytes(text)
    in_the_way = tmp_path / f"{CERTIFICATE_FILE}.draft"
    in_the_way.mkdir()
    with pytest.raises(OSError, match="directory"):
        served.load()
    in_the_way.rmdir()
    assert served.load()
    assert (tmp_path / CERTIFICATE_FILE).read_text() != before


@pytest.mark.parametrize("text", [b"no certificate", b"\xff"])
def test_a_bundle_without_a_certificate_is_refused(text, tmp_path):
    (tmp_path / "ca").write_bytes(text)
    with pytest.raises(ConfigError, match=r"--upstream-ca-file .*: has no certificate"):
        authorities(tmp_path / "ca")
