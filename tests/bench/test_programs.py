"""The benchmark of routers' own programs: what a run gives, and what the README says of them."""

import re

import pytest

from bench.child import MeasurementFailed
from bench.programs import KINDS, least_request, run, warmpick
from docs.site.pages import ROOT
from epp.demo.pools import Size, choose_pool
from epp.demo.workload import conversations, shipped_sections


def small(folder):
    pool = choose_pool("simulator", Size(servers=2, seconds=1.0, conversations=2), folder)
    return pool, conversations(shipped_sections(), pool.workload, 0)


@pytest.mark.parametrize("start", [least_request, warmpick])
async def test_a_run_has_every_figure(tmp_path, start):
    pool, plan = small(tmp_path)
    figures = await run(start, pool, plan, tmp_path)
    assert figures.keys() == {kind for kind, *_ in KINDS}
    assert 0 < figures["ttft_p50"] <= figures["ttft_p99"]
    assert figures["ttft"] < figures["whole"]
    assert 0 <= figures["cached"] <= 100
    assert figures["cores"] >= 0  # of so little work the system may count nothing


async def test_a_program_that_refuses_requests_is_no_result(tmp_path):
    async def refusing(_, logs):
        return await least_request(["127.0.0.1:1"], logs)

    pool, plan = small(tmp_path)
    with pytest.raises(MeasurementFailed, match="does not serve"):
        await run(refusing, pool, plan, tmp_path, ready_s=0.5)


README = " ".join((ROOT / "README.md").read_text().split())
PAGE = (ROOT / "docs" / "performance.md").read_text()
TOLD = {"smg": "smg 1.13.0, cache_aware", "llm-d-router": "llm-d-router, its chart's default"}
TOLD |= {"": "`epp up`", "Envoy's least request": "Envoy, least request"}


def medians(place):
    """The cells of a table of the benchmark by its rows and columns, without their spread."""
    (block,) = re.findall(r"<!-- programs: begin -->(.*?)<!-- programs: end -->", PAGE, re.DOTALL)
    table = block.split("| medians of the runs")[1 + place].split("\n\n")[0]
    heads, _, *rows = [line.strip("|").split("|") for line in table.splitlines()]
    columns = [each.strip() for each in heads]
    return {
        row[0].strip(): {
            column: re.findall(r"[\d.,]+", cell)[0]
            for column, cell in zip(columns[1:7], row[1:7], strict=True)
        }
        for row in rows
    }


@pytest.mark.parametrize(
    ("says", "column", "digits"),
    [
        ("the first token comes after", "mean TTFT", None),
        ("the whole answer after", "mean of the whole answer", None),
        ("router and proxy together take", "cores", 2),
    ],
)
def test_the_readme_says_what_the_programs_took(says, column, digits):
    (line,) = re.findall(rf"- {says} (.*?)(?: of a core\.|;(?= -)|(?= !))", README)
    for name, row in TOLD.items():
        equal, unequal = (medians(place)[row][column] for place in (0, 1))
        if digits is not None:
            told = f"{float(equal):.{digits}f}"
            assert (f"{name} {told}" if name else f"**{told}**") in line
        elif name:
            assert f"{name} {equal} ({unequal})" in line
        else:
            assert f"**{equal} ms ({unequal})**" in line
