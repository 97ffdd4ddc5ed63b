"""Types of flag values."""

import argparse

import pytest

from epp.cli.types import boolean, duration, size, verbosity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("30s", 30),
        ("1m", 60),
        ("1h", 3600),
        ("1m30s", 90),
        ("1h2m3s4ms", 3723.004),
        ("1.5s", 1.5),
        ("0s", 0),
        (".5s", 0.5),
        ("250us", 0.000_25),
        ("5", 5),
        ("0.25", 0.25),
    ],
)
def test_durations(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 s", "1d", "1s!", "x1s", "1s2", "1e3s"])
def test_no_durations(text):
    with pytest.raises(argparse.ArgumentTypeError, match="write 500ms, 5s or 1m30s"):
        duration(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("65536", 65536), ("1K", 1000), ("2Ki", 2048), ("16Mi", 16 << 20), ("1G", 10**9)],
)
def test_sizes(text, count):
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "Mi", "-1", "1.5Mi", "1MB", "1 Mi", "1mi"])
def test_no_sizes(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        size(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("True", True), ("1", True), ("t", True), ("false", False), ("0", False)],
)
def test_booleans(text, value):
    assert boolean(text) is value


@pytest.mark.parametrize("text", ["", "maybe", "2", "on"])
def test_no_booleans(text):
    with pytest.raises(argparse.ArgumentTypeError, match="neither true nor false"):
        boolean(text)


@pytest.mark.parametrize(
    ("text", "level"),
    [("-1", "info"), ("0", "info"), ("2", "info"), ("3", "info"), ("4", "debug"), ("5", "debug")],
)
def test_verbosity(text, level):
    assert verbosity(text) == level


@pytest.mark.parametrize("text", ["", "-", "debug", "4.0"])
def test_no_verbosity(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a level"):
        verbosity(text)
