"""Command lines as manifests of llm-d-router have them."""

import ssl

import pytest

from epp.cli.go_arguments import GoArgumentParser, with_command
from epp.cli.main import main
from epp.cli.serve_flags import add_serve
from epp.cli.tls_flags import _SUITES


def parsed(*words):
    parser = GoArgumentParser(prog="epp serve")
    add_serve(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    "words",
    [
        ["--pool-name=p"],
        ["--pool-name", "p"],
        ["-pool-name", "p"],
        ["-pool-name=p"],
        ["--poolName", "p"],
        ["-poolName=p"],
        ["", "--pool-name", "p", ""],
        ["--pool-name", "q", "--pool-name", "p"],
    ],
)
def test_a_flag_in_each_of_its_forms(words):
    assert parsed(*words).pool_name == "p"


@pytest.mark.parametrize(
    ("words", "level"),
    [
        (["-v", "4"], "debug"),
        (["-v=4"], "debug"),
        (["-v4"], "debug"),
        (["--v", "4"], "debug"),
        (["--v=5"], "debug"),
        (["--v", "-1"], "info"),
        (["-v=2"], "info"),
        ([], "info"),
    ],
)
def test_a_verbosity(words, level):
    assert parsed(*words).log_level == level


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["--secure-serving"], True),
        (["-secure-serving"], True),
        (["--secure-serving=false"], False),
        (["--secure-serving=F"], False),
        (["--secure-serving=True", "--health-checking"], True),
    ],
)
def test_a_boolean(words, value):
    assert parsed(*words).secure_serving is value


@pytest.mark.parametrize("text", ["- {a: b}", "--x", "", "a=b", "a: b\nc: d"])
def test_a_value_may_be_any_text(text):
    assert parsed("--pool-name", text).pool_name == text
    assert parsed(f"--pool-name={text}").pool_name == text


@pytest.mark.parametrize(
    ("words", "complete"),
    [
        (["--pool-name", "p"], ["serve", "--pool-name", "p"]),
        (["-v=4"], ["serve", "-v=4"]),
        (["", "--v=4"], ["serve", "--v=4"]),
        (["serve", "--v=4"], ["serve", "--v=4"]),
        (["check", "c"], ["check", "c"]),
        (["--help"], ["--help"]),
        (["-h"], ["-h"]),
        (["--version"], ["--version"]),
        ([], []),
    ],
)
def test_flags_alone_are_serves(words, complete):
    assert with_command(words) == complete


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pool-nam=p"], "unrecognized arguments: --pool-nam=p: did you mean `--pool-name`"),
        (["--pool"], "unrecognized arguments: --pool"),
        (["--pool-name=p", "word"], "unrecognized arguments: word"),
        (["--pool-name=p", "pool-name"], "unrecognized arguments: pool-name"),
        (
            ["serve", "http://a:1"],
            "unrecognized arguments: http://a:1; servers by their URLs are for `epp up`",
        ),
        (["--pool-name"], "--pool-name: expected one argument"),
        (["--zap-encoder=xml"], "argument --log-format/--zap-encoder: invalid choice: 'xml'"),
        (["--zap-log-level=loud"], "`loud` is not a level; write debug, info or error"),
        (["--zap-time-encoding=unix"], "`unix` is not one of epoch, millis, nano, iso8601"),
        (["--tracing=perhaps"], "`perhaps` is neither true nor false"),
        (["--tls-min-version=1.2"], "`1.2` is not one of VersionTLS10, VersionTLS11"),
        (["--tls-cipher-suites=ROT13"], "`ROT13` is not a supported cipher suite"),
        (["--grpc-max-recv-msg-size=big"], "`big` is not a size; write 4194304, 16Mi or 25MB"),
        (["--fairness-id-metric-label-limit=-1"], "`-1` is not a number of 0 or more"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2(words, said, capsys):
    with pytest.raises(SystemExit) as raised:
        main(words)
    assert raised.value.code == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.startswith("usage: epp [serve] FLAGS")


@pytest.mark.parametrize(
    ("text", "seconds"), [("5s", 5), ("50ms", 0.05), ("1ms", 0.05), ("0", 0.05)]
)
def test_metrics_are_read_every_50_ms_at_the_most_by_llm_d_routers_flag(text, seconds):
    assert parsed(f"--refresh-metrics-interval={text}").scrape_interval == seconds
    assert parsed("--scrape-interval=1ms").scrape_interval == 0.001


def test_cipher_suites_have_gos_names():
    given = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256"
    more = "--tls-cipher-suites=TLS_RSA_WITH_AES_256_CBC_SHA"
    found = parsed("--tls-cipher-suites", given, more).tls_cipher_suites
    assert found == ["ECDHE-RSA-AES128-GCM-SHA256", "AES256-SHA"]  # 1.3's are always there


@pytest.mark.parametrize("name", sorted(_SUITES))
def test_openssl_knows_every_suite(name):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers(_SUITES[name])
    assert _SUITES[name] in [each["name"] for each in context.get_ciphers()]


def test_certificates_of_readers_need_one_of_the_port(capsys):
    assert main(["--endpoints-file=x", "--metrics-client-ca-file=/ca.crt"]) == 2
    assert "--metrics-client-ca-file: it requires --metrics-cert-dir" in capsys.readouterr().err
