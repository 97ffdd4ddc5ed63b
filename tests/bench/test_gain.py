"""The README's figures of what is gained are those of the study."""

import re

import pytest

from bench.study.gain import FLEETS, MEASURES, SHOWN, draw, overall
from docs.site.pages import ROOT

PAGE = (ROOT / "docs" / "policies-study.md").read_text()
README = (ROOT / "README.md").read_text()
OURS, SMG, BASELINE, LEAST = SHOWN


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("measure", MEASURES)
def test_a_table_has_every_policy_by_its_ratio(measure, fleet):
    found = overall(PAGE, measure, fleet)
    assert len(found) == 30
    assert found[BASELINE] == 1


SAYS = {OURS: "**Warmpick's `least-ttft`**", SMG: "smg's cache-aware"}
SAYS |= {LEAST: "fewest requests under way"}


@pytest.mark.parametrize("policy", SAYS)
def test_the_readme_says_what_the_study_does(policy):
    (row,) = re.findall(rf"^\| {re.escape(SAYS[policy])} \|(.*)\|$", README, re.MULTILINE)
    assert re.findall(r"[\d.]+", row) == [
        f"{overall(PAGE, measure, fleet)[policy]:.2f}" for fleet in FLEETS for measure in MEASURES
    ]


def test_it_can_be_drawn():
    assert draw(PAGE).startswith(b"\x89PNG")
