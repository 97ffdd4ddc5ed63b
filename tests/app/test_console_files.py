"""The console's files: where they are served, and that nothing in them comes from outside."""

import re

import pytest

from epp.adapters.telemetry.debug_pages import BadQuery
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
    with pytest.raises(BadQuery):
        await static_pages()[b"/console"].answer({"path": "/etc/passwd"})
