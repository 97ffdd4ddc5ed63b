"""docs/replay-traffic.md keeps up with the code: formats, workloads, parameters and examples."""

import re
from pathlib import Path

import pytest

from epp.replay.traffic.reading import ALIASES, WORKLOADS, Parameters, read
from epp.replay.traffic.workloads.catalog import CATALOG

PAGE = (Path(__file__).parents[3] / "docs" / "replay-traffic.md").read_text()
EXAMPLES = re.findall(r"^epp replay (\S+)", PAGE, re.MULTILINE)


def rows(heading):
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]


def test_every_workload_is_in_the_table_and_no_other():
    named = [name for row in rows("Workloads") for name in re.findall(r"`(.*?)`", row)]
    assert sorted(named) == sorted((*WORKLOADS, *ALIASES))
    for row in rows("Workloads")[1:]:
        names = re.findall(r"`(.*?)`", row)
        assert len({ALIASES.get(name, name) for name in names}) == 1


def test_every_parameter_is_in_the_table_and_no_other():
    named = [name for row in rows("Arrivals") for name in re.findall(r"`(.*?)`", row)]
    assert sorted(named) == sorted(Parameters.__struct_fields__)


def test_lengths_are_those_of_the_catalog():
    for name, entry in CATALOG.items():
        (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| `{name}`")]
        numbers = {int(each.replace(",", "")) for each in re.findall(r"\d[\d,]*\d|\d", row)}
        assert entry.system in numbers or "nothing shared" in row
        assert entry.output.mean in numbers or entry.output.low in numbers


@pytest.mark.parametrize(
    "example", [each for each in EXAMPLES if "." not in each and "/" not in each]
)
def test_an_example_of_a_workload_works(example):
    name, _, given = example.partition(":")
    kept = [each for each in given.split(",") if not each.startswith("sessions")]
    assert read(f"{name}:{','.join([*kept, 'sessions=5'])}").calls
