"""Finding families on a page, from where they stood on the page before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.protocol.metrics.page_text import KnownLines, PageText, Sample, number
from epp.protocol.steps import finish
from tests.adapters.vllm_page import vllm_page

FAMILIES = ("a", "ab", "abc", "b", "c:d")
WANTED = [name.encode() for name in FAMILIES]

samples = st.lists(st.integers(0, 10**6), min_size=1, max_size=4)
blocks = st.tuples(st.sampled_from(FAMILIES), samples, st.integers(0, 400))
pages = st.lists(blocks, max_size=6, unique_by=lambda block: block[0])


def read(text, family):
    """Read a family's values."""
    return [number(sample[1]) for sample in text.samples(family) if sample]


def write(page):
    """Write families with so many samples each, a comment of some length before each."""
    lines = []
    for name, values, comment in page:
        lines.append(f"# HELP {name} {'x' * comment}\n")
        lines += [f'{name}{{number="{at}"}} {value}\n' for at, value in enumerate(values)]
    return "".join(lines).encode()


@given(st.lists(pages, min_size=1, max_size=6))
def test_offsets_of_the_page_before_change_nothing(written):
    before = KnownLines()
    for page in map(write, written):
        known, afresh = PageText(page, before), PageText(page)
        for family in WANTED:
            assert [*known.samples(family)] == [*afresh.samples(family)]


@given(st.lists(pages, min_size=1, max_size=6))
def test_lines_that_count_as_unchanged_are_those_of_the_page_before(written):
    before = KnownLines()
    last: dict[bytes, list[Sample | None]] = {}
    for page in map(write, written):
        text, afresh = PageText(page, before), PageText(page)
        for family in WANTED:
            found = [*afresh.samples(family)]
            if text.unchanged(family):
                assert found == last[family]
            else:
                assert [*text.samples(family)] == found
            last[family] = found


@given(pages)
def test_every_sample_of_a_family_is_found_and_no_other(page):
    text = PageText(write(page))
    said = {name: values for name, values, _ in page}
    for name in FAMILIES:
        assert read(text, name.encode()) == said.get(name, [])


def test_a_family_that_pages_may_lack_is_looked_for_on_each_eighth_page():
    before = KnownLines()
    assert read(PageText(b"b 1\n", before), b"a") == []
    texts = [PageText(b"b 1\na 2\n", before) for _ in range(9)]
    assert [text.rare(b"a") for text in texts] == [False] * 7 + [True] * 2
    assert read(texts[-1], b"a") == [2.0]
    assert PageText(b"b 1\n", before).rare(b"a")


@pytest.mark.parametrize(
    ("start", "there"), [(b"vllm:", True), (b"vllm:some_1_", True), (b"sglang:", False)]
)
def test_a_line_that_starts_so(start, there):
    assert finish(PageText(vllm_page()).has_line(start)) is there
