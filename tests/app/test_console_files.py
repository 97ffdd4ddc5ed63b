"""The console's files: where they are served, and that nothing in them comes from outside."""

import asyncio
import json
import re
import shutil

import pytest

from epp.adapters.telemetry.debug_pages import QueryRefused
from epp.app.console.pages import static_pages

SCRIPTS = {path: each for path, each in static_pages().items() if path.endswith(b".js")}


def test_the_files_are_served_at_paths_of_their_own():
    pages = static_pages()
    assert {b"/console", b"/console/main.js", b"/console/console.css"} <= pages.keys()
    assert not any(b".." in path for path in pages)
    assert len({each.etag for each in pages.values()}) == len(pages)
    assert not any(each.local for each in pages.values())


async def test_every_file_that_is_named_is_there_and_nothing_is_from_outside():
    pages = static_pages()
    for path, each in pages.items():
        data = (await each.answer({})).decode()
        named = re.findall(r'(?:src|href|from) ?=? ?"([^"]+)"', data)
        for name in named:
            assert b"/console/" + name.rpartition("/")[2].encode() in pages
        assert "http" not in data.replace("http://www.w3.org/2000/svg", ""), path


@pytest.mark.parametrize("path", SCRIPTS, ids=bytes.decode)
async def test_no_script_makes_markup_of_text(path):
    data = (await SCRIPTS[path].answer({})).decode()
    forbidden = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
    )
    assert re.findall(forbidden, data) == []
    assert len(data.splitlines()) < 400


async def test_a_file_takes_no_query():
    with pytest.raises(QueryRefused):
        await static_pages()[b"/console"].answer({"path": "/etc/passwd"})


NODE = shutil.which("node") or ""
POINTS = """
import { State } from "./state.js";
import { rates } from "./prediction.js";
const columns = (names, values) =>
  Object.fromEntries(names.map((name, at) => [name, values.slice(at, at + 1)]));
const rows = (...values) => columns(["number", "predicted_ttft_ms", "ttft_ms"], values);
const endpoints = columns(["endpoint", "queued_prefill_ms", "running"], []);
const state = new State();
for (let second = 0; second <= 10; second++) {
  state.take({
    started: "now", at_ms: 1000 * second, decisions: 0, totals: {}, waiting: {}, endpoints,
    recent: rows(), ended: second === Number(process.argv.at(-1)) ? rows(1, 20, 30) : rows(),
  });
}
console.log(JSON.stringify(rates(state.points).map((point) => [point.ttft, point.predictedTtft])));
"""


@pytest.mark.skipif(
    not NODE, reason="NOT TESTED: the console's points: there is no node; install it"
)
@pytest.mark.parametrize(("second", "place"), [(1, 0), (4, 0), (5, 0), (6, 1), (10, 1)])
async def test_a_response_that_was_seen_counts_in_the_chart_of_first_tokens(
    second, place, tmp_path
):
    for path, each in SCRIPTS.items():
        (tmp_path / path.decode().rpartition("/")[2]).write_bytes(await each.answer({}))
    (tmp_path / "package.json").write_text('{"type": "module"}')
    points = tmp_path / "points.js"
    points.write_text(POINTS)
    asked = await asyncio.create_subprocess_exec(
        NODE, points, str(second), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await asked.communicate()
    nothing = [None, None]
    assert json.loads(told) == [[30, 20] if at == place else nothing for at in range(2)]
