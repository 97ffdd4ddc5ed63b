"""Whatever a path becomes, reading it takes a moment and ends with a word."""

import os
import socket
import time

import pytest

from epp.errors import ConfigError
from epp.system.files import FollowedFile, read_regular

MOST = 1_000
QUICK_SECONDS = 0.5


def listener(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def of_length(length):
    def make(path):
        path.write_bytes(b"x" * length)

    return make


def fifo_with_a_writer(path):
    os.mkfifo(path)
    os.open(path, os.O_RDWR)  # stays open with the test's process


REFUSED = {
    "a FIFO": (os.mkfifo, "it is not a regular file"),
    "a FIFO that somebody writes to": (fifo_with_a_writer, "it is not a regular file"),
    "a device without an end": (lambda path: path.symlink_to("/dev/zero"), "not a regular file"),
    "a device without a beginning": (
        lambda path: path.symlink_to("/dev/ptmx"),
        "not a regular file",
    ),
    "a socket": (listener, "it is not a regular file"),
    "a directory": (lambda path: path.mkdir(), "it is not a regular file"),
    "a file of proc": (lambda path: path.symlink_to("/proc/kallsyms"), "longer than 1000 bytes"),
    "one byte more": (of_length(MOST + 1), "longer than 1000 bytes"),
    "nothing": (lambda _path: None, "cannot be read: No such file or directory"),
    "a dangling link": (lambda path: path.symlink_to("none"), "cannot be read: No such file"),
    "a loop of links": (lambda path: path.symlink_to(path), "cannot be read: Too many levels"),
}


@pytest.mark.parametrize(("make", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_file_is_given_up_with_a_word(make, problem, tmp_path):
    path = tmp_path / "it"
    make(path)
    began = time.monotonic()
    with pytest.raises(ConfigError, match=problem) as raised:
        read_regular(path, MOST)
    assert raised.value.place == str(path)
    with pytest.raises(ConfigError, match=problem):
        FollowedFile(path, MOST).changed()
    assert time.monotonic() - began < QUICK_SECONDS


def test_a_path_that_no_system_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot be read: .*embedded null"):
        read_regular(tmp_path / "a\0b", MOST)


@pytest.mark.parametrize("length", [0, 1, MOST])
def test_a_file_is_read_whole(length, tmp_path):
    path = tmp_path / "it"
    of_length(length)(path)
    assert read_regular(path, MOST) == b"x" * length


@pytest.mark.parametrize("make", [each for each, _ in REFUSED.values()], ids=REFUSED)
def test_a_followed_file_is_returned_once_and_again_after_it_was_something_else(make, tmp_path):
    good, bad, path = tmp_path / "good", tmp_path / "bad", tmp_path / "it"
    good.write_bytes(b"good")
    make(bad)

    def point(target):
        (tmp_path / "next").symlink_to(target)
        (tmp_path / "next").replace(path)

    point(good)
    followed = FollowedFile(path, MOST)
    assert [followed.changed(), followed.changed()] == [b"good", None]
    point(bad)
    for _ in range(2):
        with pytest.raises(ConfigError):
            followed.changed()
    point(good)
    assert [followed.changed(), followed.changed()] == [b"good", None]
    followed.forget()
    assert followed.changed() == b"good"


def test_of_a_file_that_is_written_in_place_no_part_is_returned(tmp_path):
    path = tmp_path / "it"
    path.write_bytes(b"before")
    followed = FollowedFile(path, MOST)
    assert followed.changed() == b"before"
    assert not any(followed.changed() for _ in range(10))
    with path.open("wb", buffering=0) as writing:
        assert followed.changed() is None  # it is empty
        for part in (b"what ", b"comes ", b"after"):
            writing.write(part)
            followed.forget()
            assert followed.changed() is None
    assert [followed.changed(), followed.changed()] == [b"what comes after", None]


def test_nor_is_a_file_that_is_touched_again_and_again_waited_for_once_it_is_another(tmp_path):
    path, other = tmp_path / "it", tmp_path / "other"
    path.write_bytes(b"before")
    followed = FollowedFile(path, MOST)
    assert followed.changed() == b"before"
    path.write_bytes(b"written in place")
    assert followed.changed() is None
    other.write_bytes(b"whole")
    other.replace(path)
    assert [followed.changed(), followed.changed()] == [b"whole", None]


def test_a_file_that_is_written_in_place_for_ever_is_read(tmp_path):
    path = tmp_path / "it"
    path.write_bytes(b"before")
    followed = FollowedFile(path, MOST)
    assert followed.changed() == b"before"
    for number in range(10):
        found = []
        for again in range(6):
            path.write_bytes(b"after %d" % number)
            os.utime(path, ns=(again, number))  # whatever the clock's resolution
            found.append(followed.changed())
        assert found == [*[None] * 5, b"after %d" % number]
    path.write_bytes(b"the last")
    assert [followed.changed() for _ in range(3)] == [None, b"the last", None]


def test_nor_is_it_read_while_it_is_empty(tmp_path):
    path = tmp_path / "it"
    path.write_bytes(b"before")
    followed = FollowedFile(path, MOST)
    assert followed.changed() == b"before"
    for number in range(60):
        path.write_bytes(b"")
        os.utime(path, ns=(number, number))
        assert followed.changed() is None
    path.write_bytes(b"after")
    assert followed.changed() == b"after"
