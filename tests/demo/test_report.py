"""The demo's report, also where a policy served nothing."""

import re

import pytest

from epp.demo.comparison import RunResult
from epp.demo.figures import Sample, summarize
from epp.demo.pools import Size, choose_pool
from epp.demo.report import Setup, report

FAILED = Sample(conversation=0, turn=0, sent_at=0.0, error="503")
SERVED = Sample(conversation=0, turn=0, sent_at=0.0, ttft=0.1, seconds=1.0, prompt_tokens=64000)
SERVERS = ("a", "b")


def run(policy, sample):
    figures = summarize([sample], SERVERS, 16)
    return RunResult(
        policy=policy, servers=SERVERS, samples=(sample,), figures=figures, client_load=0.1
    )


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            FAILED,
            SERVED,
            ("have - tokens", "took - of the", "and 160 % under least-ttft", "after -"),
        ),
        (SERVED, FAILED, ("have 64,000 tokens", "after 1.00 s under round-robin and - under")),
    ],
)
def test_what_is_not_known_is_a_dash(first, second, said, tmp_path):
    pool = choose_pool("simulator", Size(), tmp_path)
    runs = run("round-robin", first), run("least-ttft", second)
    page = " ".join(report(*runs, Setup(pool, 1, "machine", "command")).split())
    assert [each for each in said if each not in page] == []
    assert not re.search(r"\bnan\b", page)
