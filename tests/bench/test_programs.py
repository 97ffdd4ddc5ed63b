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


README = (ROOT / "README.md").read_text()
PAGE = (ROOT / "docs" / "performance.md").read_text()
SAYS = {
    "`epp up`": "**Warmpick**",
    "smg 1.13.0, cache_aware": "smg, cache-aware",
    "llm-d-router, its chart's default": "llm-d-router",
    "Envoy, least request": "Envoy, least request",
}


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


def test_the_summary_of_the_page_says_what_the_programs_took():
    (table,) = re.findall(r"^\| against llm-d-router's.*?\n\n", PAGE, re.MULTILINE | re.DOTALL)
    cells = [line.strip("| ").split(" | ")[1:] for line in table.strip().splitlines()[2:]]
    programs = ("`epp up`", "llm-d-router, its chart's default")
    equal, unequal = ([medians(place)[each] for each in programs] for place in (0, 1))
    assert cells == [
        [f"{each['mean TTFT']}, {each['TTFT p99']} ms" for each in equal],
        [f"{each['mean TTFT']}, {each['TTFT p99']} ms" for each in unequal],
        [f"{each['found cached']} %" for each in equal],
        [each["cores"] for each in equal],
    ]


@pytest.mark.parametrize("program", SAYS)
def test_the_readme_says_what_the_programs_took(program):
    (row,) = re.findall(rf"^\| {re.escape(SAYS[program])} \|(.*)\|$", README, re.MULTILINE)
    equal, unequal = (medians(place)[program] for place in (0, 1))
    times = ("mean TTFT", "mean of the whole answer")
    assert [cell.strip(" *") for cell in row.split("|")] == [
        *(f"{equal[column]} ({unequal[column]})" for column in times),
        f"{float(equal['cores']):.2f}",
    ]
