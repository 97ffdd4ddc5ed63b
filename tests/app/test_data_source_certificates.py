"""Pages that are read with TLS: whose certificates are trusted, and which are shown."""

import contextlib
import ssl
import time

import pytest
from structlog.testing import capture_logs

from epp.app.data_sources import DataSources
from epp.errors import ConfigError
from epp.model.endpoint import HTTPS
from epp.model.events import LoadReported, ScrapeFailed
from tests.adapters.vllm_page import vllm_page
from tests.app.polled_pages import Pages, first, polling, settings
from tests.kubeapi.authority import Authority


def mutual(authority):
    """Return the context of a server that asks its clients for certificates of an authority."""
    context = authority.context()
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def files(folder, authority, issuer=None):
    issued = (issuer or authority).issue("picker")
    found = {"ca": authority.certificate, "crt": issued.certificate, "key": issued.key}
    for name, content in found.items():
        (folder / name).write_bytes(content)
    return f"caCertPath: {folder}/ca, clientCertPath: {folder}/crt, clientKeyPath: {folder}/key"


def secure(paths, verify=True):
    source = f"{{scheme: https, insecureSkipVerify: {str(not verify).lower()}, {paths}}}"
    return settings(("metrics-data-source", source, "core-metrics-extractor"))


@pytest.mark.parametrize("known", [True, False])
async def test_both_sides_show_their_certificates(tmp_path, known):
    authority = Authority()
    async with Pages(metrics=vllm_page()).serving(mutual(authority)) as pages:
        layer = secure(files(tmp_path, authority, issuer=authority if known else Authority()))
        async with polling(layer, pages.endpoint()) as (told, _):
            if known:
                assert (await first(told, LoadReported)).load.waiting == 3
            else:
                await first(told, ScrapeFailed)


@pytest.mark.parametrize("verify", [True, False])
async def test_a_certificate_of_strangers_is_refused_where_it_is_verified(tmp_path, verify):
    async with Pages(metrics=vllm_page()).serving(Authority().context()) as pages:
        (authorities, *_) = files(tmp_path, Authority()).split(", ")
        layer = secure(authorities, verify=verify)
        async with polling(layer, pages.endpoint()) as (told, _):
            await first(told, ScrapeFailed if verify else LoadReported)


@pytest.mark.parametrize("verify", [True, False])
async def test_an_endpoint_that_speaks_https_is_asked_so(verify):
    source = f"{{insecureSkipVerify: {str(not verify).lower()}}}"
    layer = settings(("metrics-data-source", source, "core-metrics-extractor"))
    async with (
        Pages(metrics=vllm_page()).serving(Authority().context()) as pages,
        polling(layer, pages.endpoint(app_protocol=HTTPS)) as (told, _),
    ):
        await first(told, ScrapeFailed if verify else LoadReported)


async def test_certificates_are_read_again_when_they_change(tmp_path):
    old, new = Authority(), Authority()
    pages = Pages(metrics=vllm_page())
    layer = secure(files(tmp_path, old))
    async with contextlib.AsyncExitStack() as servers:
        await servers.enter_async_context(pages.serving(mutual(old)))
        async with polling(layer, pages.endpoint()) as (told, _):
            await first(told, LoadReported)
            await servers.aclose()
            async with pages.serving(mutual(new)):
                await first(told, ScrapeFailed, count=3)
                (tmp_path / "key").write_bytes(b"half of a key")
                with capture_logs() as logs:
                    await first(told, ScrapeFailed, count=8)
                assert {entry["event"] for entry in logs} == {"source.certificates_unusable"}
                assert len(logs) == 1
                files(tmp_path, new)
                told.events.clear()
                assert (await first(told, LoadReported)).load.waiting == 3


@pytest.mark.parametrize(
    ("spoilt", "problem"),
    [
        ("ca", "holds no PEM certificate that can be trusted"),
        ("crt", "cannot be shown with the key"),
        ("key", "cannot be shown with the key"),
    ],
)
def test_a_start_with_unusable_certificates_says_which(tmp_path, spoilt, problem):
    layer = secure(files(tmp_path, Authority()))
    (tmp_path / spoilt).write_bytes(b"no PEM")
    with pytest.raises(ConfigError, match=problem):
        DataSources(layer, 1.0, print, time.monotonic)
    (tmp_path / spoilt).unlink()
    with pytest.raises(ConfigError, match="No such file"):
        DataSources(layer, 1.0, print, time.monotonic)
    (tmp_path / spoilt).mkdir()
    with pytest.raises(ConfigError, match="not a regular file"):
        DataSources(layer, 1.0, print, time.monotonic)
