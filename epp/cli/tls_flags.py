"""The flags that bound TLS, with the names of Go's `crypto/tls` for versions and cipher suites."""

import argparse
import ssl
from pathlib import Path

from epp.cli.types import unless_empty, words
from epp.errors import ConfigError

_VERSIONS = {
    # RFC 9113 §9.2: HTTP/2 needs TLS 1.2, so the first two mean that.
    "VersionTLS10": ssl.TLSVersion.TLSv1_2,
    "VersionTLS11": ssl.TLSVersion.TLSv1_2,
    "VersionTLS12": ssl.TLSVersion.TLSv1_2,
    "VersionTLS13": ssl.TLSVersion.TLSv1_3,
}
_SUITES = {
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
"""OpenSSL's names of Go's suites up to TLS 1.2, without RC4 and 3DES."""
_ALWAYS = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
"""TLS 1.3's: neither Go nor OpenSSL lets one choose among them."""


def tls_version(text: str) -> ssl.TLSVersion:
    """Return the minimum TLS version by Go's name for it."""
    if text not in _VERSIONS:
        raise argparse.ArgumentTypeError(f"`{text}` is not one of {', '.join(_VERSIONS)}")
    return _VERSIONS[text]


def cipher_suites(text: str) -> tuple[str, ...]:
    """Return OpenSSL's names of the cipher suites, in order, without those of TLS 1.3."""
    given = words(text)
    unknown = [name for name in given if name not in _SUITES and name not in _ALWAYS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f"`{unknown[0]}` is not a supported cipher suite; write Go's names, such as"
            " TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
        )
    return tuple(_SUITES[name] for name in given if name in _SUITES)


def add_tls(group: argparse._ArgumentGroup) -> None:
    """Add the flags, with llm-d-router's names."""
    group.add_argument(
        "--tls-min-version",
        type=unless_empty(tls_version, ssl.TLSVersion.TLSv1_2),
        default=ssl.TLSVersion.TLSv1_2,
        metavar="VERSION",
        help="VersionTLS12 or VersionTLS13, on the ext_proc and the metrics port"
        " (default: VersionTLS12)",
    )
    group.add_argument(
        "--tls-cipher-suites",
        type=cipher_suites,
        action="extend",
        default=[],
        metavar="NAMES",
        help="cipher suites of TLS 1.2, by Go's names, separated by commas (default: OpenSSL's)",
    )
    group.add_argument(
        "--metrics-cert-dir",
        type=unless_empty(Path),
        metavar="DIR",
        help="folder with tls.crt and tls.key for the metrics port (default: plaintext)",
    )
    group.add_argument(
        "--metrics-client-ca-file",
        type=unless_empty(Path),
        metavar="FILE",
        help="require a client certificate on the metrics port, signed by one of these CAs (PEM)",
    )


def check_metrics_tls(arguments: argparse.Namespace) -> None:
    """Raise `ConfigError` if the metrics port has CAs of clients but no certificate."""
    if arguments.metrics_client_ca_file is not None and arguments.metrics_cert_dir is None:
        raise ConfigError("it requires --metrics-cert-dir", "--metrics-client-ca-file")
