"""Pages that a pod writes to stop the picker: what reading them costs, and what remains."""

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol.metrics.page import MAX_RANKS, Page, PageBefore
from tests.adapters.vllm_page import vllm_page
from tests.protocol.growth import too_steep
from tests.protocol.metrics.reading import reader

WAITING = b"vllm:num_requests_waiting"
CONFIG = b"vllm:cache_config_info"
LORA = b"vllm:lora_requests_info"
SIZE = 1 << 16
STEP = 40_000
"""A step may look at so many bytes; a sample counts for 64 at least."""


def repeated(line, size):
    return b"".join(line % number for number in range(size // len(line % 0)))


def one_line(start, piece, end, size):
    return start + piece * (size // len(piece)) + end


HOSTILE = {
    "a word in braces": lambda n: one_line(WAITING + b"{", b"a", b"} 1\n", n),
    "an open quote": lambda n: one_line(WAITING + b'{a="', b"a", b" 1\n", n),
    "escapes": lambda n: one_line(WAITING + b'{a="', b'\\"', b'"} 1\n', n),
    "words without values": lambda n: one_line(WAITING + b"{", b"a = ", b"} 1\n", n),
    "labels on one line": lambda n: one_line(CONFIG + b"{", b'a="",', b'block_size="16"} 1\n', n),
    "a long number": lambda n: one_line(WAITING + b" ", b"1", b"\n", n),
    "spaces": lambda n: one_line(WAITING, b" ", b"1\n", n),
    "labels on lines that are allowed": lambda n: (
        one_line(CONFIG + b"{", b'a="",', b'block_size="16"} 1\n', 4000) * (n // 4000)
    ),
    "words on lines that are allowed": lambda n: (
        one_line(WAITING + b"{", b"a", b"} 1\n", 4000) * (n // 4000)
    ),
    "engines": lambda n: repeated(WAITING + b'{engine="%d"} 1\n', n),
    "one engine": lambda n: repeated(WAITING + b'{engine="0",n="%d"} 1\n', n),
    "configurations": lambda n: repeated(
        CONFIG + b'{engine="%d",block_size="16",num_gpu_blocks="9"} 1\n', n
    ),
    "adapters": lambda n: repeated(LORA + b'{max_lora="4",running_lora_adapters="a%d"} 1\n', n),
    "names that begin alike": lambda n: repeated(WAITING + b"_%d 1\n", n),
    "newlines": lambda n: b"vllm:x 1\n" + b"\n" * n,
    "nothing": lambda n: b"x" * n,
}


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_the_cost_of_a_byte_is_constant(make):
    assert not too_steep(lambda text: reader().read(Page(text), at=1.0), make)


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_a_page_is_read_in_steps(make):
    text = b"vllm:x 1\n" + make(4 * SIZE)
    steps = sum(1 for _ in reader().steps(Page(text), at=1.0))
    assert steps >= len(text) // STEP or text.count(b"\n") > MAX_RANKS
    assert steps >= 64 * min(text.count(b"\n"), MAX_RANKS) // STEP


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_nothing_of_a_page_remains(make):
    one, text = reader(), make(4 * SIZE)
    before = PageBefore()
    one.read(Page(vllm_page(), before), at=0.0)
    tracemalloc.start()
    try:
        one.read(Page(text, before), at=1.0)
        gc.collect()
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 64_000
    assert most < 4 * len(text) + 1_000_000


def test_engines_above_the_limit_are_left_out_and_said():
    one = reader()
    page = b"".join(WAITING + b'{engine="%d"} 1\n' % number for number in range(40_000))
    first, second = (one.read(Page(page), at=at) for at in (1.0, 2.0))
    assert first.load.waiting == MAX_RANKS
    assert first.warnings == ("engines of the page after the first 4096 are ignored",)
    assert second.warnings == ()


def test_each_engine_of_a_large_server_is_read_once_for_all_endpoints():
    families = (WAITING, b"vllm:num_requests_running", b"vllm:kv_cache_usage_perc")
    page = Page(
        b"".join(
            family + b'{engine="%d"} 0.5\n' % number
            for family in families
            for number in range(MAX_RANKS)
        )
    )
    steps = [
        sum(1 for _ in reader(rank=rank).steps(page, at=1.0)) for rank in (0, 1, MAX_RANKS - 1)
    ]
    assert steps[0] > 50
    assert steps[1:] == [0, 0]


@pytest.mark.parametrize("line", [b'{a="%s"} 1\n', b"{%s} 1\n", b" %s\n"])
def test_a_line_above_8_kib_is_skipped_and_said(line):
    page = WAITING + line % (b"1" * 8192) + WAITING + b" 3\n"
    reading = reader().read(Page(page), at=1.0)
    assert reading.load.waiting == 3
    assert reading.warnings == ("lines of more than 8192 bytes are ignored",)


def test_adapters_above_the_limits_are_left_out():
    names = ",".join(f"adapter-{number}" for number in range(600)) + "," + "x" * 300
    page = b"".join(
        LORA + b'{engine="%d",running_lora_adapters="%d,%s"} 1\n' % (rank, rank, names.encode())
        for rank in range(20)
    )
    adapters = reader().read(Page(page), at=1.0).load.running_adapters
    assert 600 < len(adapters) < 620
    assert max(map(len, adapters)) < 300


def test_a_warning_does_not_repeat_what_the_page_has_at_length():
    page = CONFIG + b'{block_size="%s"} 1\n' % (b"x" * 8000)
    reading = reader().read(Page(page), at=1.0)
    assert max(map(len, reading.warnings)) < 200


WORDS = (b'{engine="', b'0"', b'"', b"a", b"=", b",", b"}", b" ", b"1", b"\n", b"\\", b"\t")
LONG = (b'block_size="16"', b"a" * 500, b'x="y",' * 99, b"\n" * 99)
PIECES = st.sampled_from((WAITING, CONFIG, LORA, *WORDS, *LONG))


@given(st.lists(PIECES, max_size=60).map(b"".join), st.integers(2, 40))
def test_whatever_the_page_its_steps_are_in_proportion(piece, times):
    text = piece * times
    steps = sum(1 for _ in reader().steps(Page(text), at=1.0))
    assert steps <= 40 + 20 * len(text) // 8192
