"""The README's figures of what is gained are those of the study."""

import re

import pytest

from bench.study.gain import FLEETS, MEASURES, SHOWN, draw, overall
from docs.site.pages import ROOT

PAGE = (ROOT / "docs" / "policies-study.md").read_text()
README = " ".join((ROOT / "README.md").read_text().split())
OURS, SMG, BASELINE, LEAST = SHOWN


@pytest.mark.parametrize("fleet", FLEETS)
@pytest.mark.parametrize("measure", MEASURES)
def test_a_table_has_every_policy_by_its_ratio(measure, fleet):
    found = overall(PAGE, measure, fleet)
    assert len(found) == 30
    assert found[BASELINE] == 1


def told(policy, measure):
    return [f"{overall(PAGE, measure, fleet)[policy]:.2f}" for fleet in FLEETS]


def test_the_readme_says_what_the_study_does():
    first, whole = (told(OURS, measure) for measure in MEASURES)
    assert re.findall(r"first token: ([\d.]+) on equal pods, ([\d.]+) where", README) == [
        tuple(first)
    ]
    assert re.findall(r"whole answer: ([\d.]+) and ([\d.]+);", README) == [tuple(whole)]
    for policy, name in ((SMG, "policy has"), (LEAST, "under way")):
        pairs = " and ".join(told(policy, MEASURES[0])), " and ".join(told(policy, MEASURES[1]))
        assert f"{name} {pairs[0]}, and {pairs[1]}" in README


def test_it_can_be_drawn():
    assert draw(PAGE).startswith(b"\x89PNG")
