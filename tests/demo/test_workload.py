import itertools
import statistics

import msgspec
import pytest

from epp.demo.pools import Size, choose_pool
from epp.demo.workload import INSTRUCTIONS, Workload, conversations, sections_of, shipped_sections

LOAD = Workload(conversations=60, seconds=20.0, dossiers=30, sections=5, turns=(2, 6), gap=2.0)


@pytest.fixture(scope="module")
def sections():
    return shipped_sections()


def test_sections_are_cut_at_second_level_headings():
    text = "# Title\nintro\n\n## One\nfirst\n\nmore\n## Two\nsecond\n"
    cut = [(section.heading, section.text) for section in sections_of(text)]
    assert cut == [("One", "first\n\nmore"), ("Two", "second")]


def test_the_shipped_texts_are_ours_to_cut_and_distinct(sections):
    assert len(sections) >= 40
    assert len({section.heading for section in sections}) == len(sections)
    assert min(len(section.text) for section in sections) > 400


def test_equal_seeds_give_equal_workloads(sections):
    assert conversations(sections, LOAD, 7) == conversations(sections, LOAD, 7)


def test_other_seeds_give_other_workloads(sections):
    assert conversations(sections, LOAD, 7) != conversations(sections, LOAD, 8)


def test_the_plan_keeps_its_promises(sections):
    plan = conversations(sections, LOAD, 3)
    assert [conversation.number for conversation in plan] == list(range(60))
    for conversation in plan:
        moments = [turn.at for turn in conversation.turns]
        assert 1 <= len(moments) <= 6
        assert moments == sorted(moments)
        assert 0 <= moments[0] <= moments[-1] <= LOAD.seconds
        assert all(LOAD.answer[0] <= turn.tokens <= LOAD.answer[1] for turn in conversation.turns)
        assert all(right - left >= 1.0 for left, right in itertools.pairwise(moments))
    gaps = [
        right.at - left.at
        for conversation in plan
        for left, right in itertools.pairwise(conversation.turns)
    ]
    assert statistics.mean(gaps) == pytest.approx(LOAD.gap, rel=0.25)


def test_dossiers_share_the_instructions_and_nothing_after_them(sections):
    dossiers = {conversation.system for conversation in conversations(sections, LOAD, 3)}
    assert 10 < len(dossiers) <= LOAD.dossiers
    starts = [dossier[len(INSTRUCTIONS) :].lstrip().splitlines()[:4] for dossier in dossiers]
    assert all(dossier.startswith(INSTRUCTIONS) for dossier in dossiers)
    assert len({tuple(start) for start in starts}) > len(starts) // 2


def test_popular_dossiers_come_back(sections):
    asked = [conversation.system for conversation in conversations(sections, LOAD, 3)]
    counts = sorted((asked.count(dossier) for dossier in set(asked)), reverse=True)
    assert counts[0] >= 3 * statistics.median(counts)


@pytest.mark.parametrize(
    "size",
    [Size(), Size(servers=8), Size(servers=2, seconds=10.0), Size(quick=True)],
    ids=["standard", "wider", "smaller", "quick"],
)
def test_arrivals_per_server_do_not_depend_on_the_size(size, tmp_path):
    standard = choose_pool("simulator", Size(), tmp_path)
    pool = choose_pool("simulator", size, tmp_path)
    per_server = pool.workload.rate / pool.servers
    assert per_server == pytest.approx(standard.workload.rate / standard.servers, rel=0.05)


def test_a_given_number_of_conversations_is_kept(tmp_path):
    assert choose_pool("simulator", Size(conversations=5), tmp_path).workload.conversations == 5


def test_both_kinds_of_pools_can_be_described(tmp_path):
    for kind in ("simulator", "vllm"):
        pool = choose_pool(kind, Size(servers=3), tmp_path)
        assert (pool.kind, pool.servers) == (kind, 3)
        assert msgspec.json.encode(pool.workload)
