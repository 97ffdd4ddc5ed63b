"""The console in a headless Chromium, over a real picker under load."""

import asyncio
import contextlib
import json
import os
import random
from itertools import count
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from e2e.browser import browsing, chromium
from e2e.corridor import CHAT, WATCHED, Corridor, Plan, chat, running
from e2e.serving import serving

CLIENTS = 4
MANY = 1000
MAX_BYTES = 300_000
MARKUP = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
SYSTEMS = [" ".join(f"rule {kind} {number}" for number in range(300)) for kind in "abc"]
SCREENSHOTS = os.environ.get("WARMPICK_SCREENSHOTS", "")
"""A folder that keeps what was seen; without it nobody looks, and the files go with the test's."""
LIVE = "document.querySelector('#status').textContent.includes('live')"
METRICS = """vllm:num_requests_running{{model_name="m"}} {running}
vllm:num_requests_waiting{{model_name="m"}} 0
vllm:kv_cache_usage_perc{{model_name="m"}} {usage}
vllm:cache_config_info{{block_size="16",num_gpu_blocks="8192"}} 1.0
"""


@pytest.fixture(autouse=True, scope="module")
def browser():
    return chromium()


@contextlib.asynccontextmanager
async def load(gateway):
    """Clients that never stop talking, each in conversations that begin alike."""
    numbers, done = count(), False

    async def client(number):
        chance = random.Random(number)
        while not done:
            turns = [chance.choice(SYSTEMS) + f" of {number} {chance.random()}"]
            for _ in range(3):
                turn = next(numbers)
                name = MARKUP if turn % 5 == 0 else f"req-{turn}"
                body = chat(*turns, stream=True, stream_options={"include_usage": True})
                with contextlib.suppress(aiohttp.ClientError):  # at the end the gateway goes
                    async with gateway.stream(CHAT, body, **{"x-request-id": name}) as response:
                        await response.read()
                turns += ["an answer", f"and {chance.random()}"]

    clients = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
    try:
        yield
    finally:
        done = True
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def seen(page, name, tmp_path):
    """Keep what is seen, light and dark; give back to the page what it was."""
    folder = Path(SCREENSHOTS or tmp_path)
    for dark in (True, False):
        await page.look(dark=dark)
        await asyncio.sleep(0.1)
        await page.screenshot(folder / f"{name}-{'dark' if dark else 'light'}.png")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def page(tmp_path_factory):
    """The console of a picker under load."""
    folder = tmp_path_factory.mktemp("console")
    plan = Plan(simulators=("a", "b", "c", "d"), picker_flags=(*WATCHED, "--shadow=round-robin"))
    async with (
        running(Corridor, plan, folder) as gateway,
        load(gateway),
        browsing(folder / "profile") as page,
    ):
        await page.open(gateway.operator_url("/console"))
        await page.until(LIVE)
        yield page


async def test_pods_are_listed_and_one_is_opened_with_its_decisions(page, tmp_path):
    await page.press("1")
    rows = "[...document.querySelectorAll('#view-fleet tbody tr[aria-rowindex]')]"
    assert await page.until(f"{rows}.length") == 4
    answered = f"1 + {rows}.findIndex((row) => row.cells[10].innerText.includes('%'))"  # hits
    await page.press(*("j" * await page.until(answered)), "Enter")
    opened = await page.until("document.querySelector('#details h2')?.innerText")
    assert opened == await page.text("#view-fleet tr.selected td")
    await page.until("document.querySelectorAll('#details .brief tbody tr').length")
    await seen(page, "fleet", tmp_path)
    await page.press("Escape")
    assert await page.run("document.querySelector('#details').hidden")


async def test_what_a_client_sent_is_text_and_a_decision_is_explained(page, tmp_path):
    await page.press("2", "/")
    for letter in "img":
        await page.press(letter)
    await page.press("Enter")
    name = "(document.querySelector('#view-decisions td.name')?.textContent ?? '')"
    assert await page.until(f"{name}.includes('<img') && {name}") == MARKUP
    await page.press("j", "Enter")
    why = "(document.querySelector('#details')?.textContent ?? '')"
    await page.until(f"{why}.includes('Why that pod?')")
    await page.until("document.querySelector('#details .candidates .picked') !== null")
    assert MARKUP in await page.run(why)
    await page.press("Escape", "Escape")
    assert await page.run("document.querySelector('#view-decisions input').value") == ""
    await page.press("j", "Enter")
    await page.until("document.querySelector('#details .candidates .picked') !== null")
    await seen(page, "decisions", tmp_path)
    top = "document.querySelector('#view-decisions .scroll').scrollTop"
    await page.until(f"{top} > 300")  # rows come above the one that is looked at
    assert await page.run("document.querySelector('#view-decisions tr.selected') !== null")
    await page.press("Escape", "Escape")
    assert await page.run(top) == 0
    assert await page.run("document.title") == "default · Warmpick"
    assert await page.run("document.querySelectorAll('img, script:not([src])').length") == 0


async def test_lines_are_drawn_over_time(page, tmp_path):
    await page.press("3")
    drawn = "document.querySelectorAll('#view-prediction path.line[d^=M]').length"
    await page.until(f"{drawn} >= 9")
    await seen(page, "prediction", tmp_path)


async def test_what_runs_beside_is_shown_and_what_does_not_is_said(page, tmp_path):
    await page.press("4")
    text = "document.querySelector('#view-beside').innerText"
    await page.until(f"{text}.includes('Shadow: round-robin')")
    assert "--replicas=" in await page.text("#view-beside")
    await seen(page, "beside", tmp_path)


async def test_the_tree_of_prefixes_opens(page, tmp_path):
    await page.press("5")
    rows = "[...document.querySelectorAll('#view-prefixes tbody tr')]"
    assert await page.until(f"{rows}.length") <= len(SYSTEMS)
    await page.press("j", "Enter")
    await page.until(f"{rows}.some((row) => row.ariaLevel === '2')")
    await seen(page, "prefixes", tmp_path)


async def test_a_pause_stops_what_is_shown(page):
    await page.press("p")
    figures = await page.text("#figures")
    assert await page.text("#status") == "❚❚ paused"
    await page.run("new Promise((done) => setTimeout(done, 1500))")
    assert await page.text("#figures") == figures
    await page.press("p")
    await page.until(f"document.querySelector('#figures').textContent !== {figures!r}")
    await page.press("?")
    assert await page.run("document.querySelector('#help').open")
    await page.press("Escape")
    assert page.problems == []


async def test_a_picker_that_goes_away_is_said_and_found_again(start, echo, tmp_path):
    async with start(Plan(others=(echo.target,))) as gateway, browsing(tmp_path / "p") as page:
        await page.open(gateway.operator_url("/console"))
        await page.until(LIVE)
        await gateway.picker.stop(0)
        await page.until("document.querySelector('#status').textContent.includes('no answer')")
        await gateway.start_picker()
        await page.until(LIVE)


class Large(Corridor):
    """A thousand endpoints, which are one server at as many addresses."""

    def write_endpoints(self, *names):
        port = int(self.targets["other-0"].rpartition(":")[2])
        entries = [
            {
                "name": f"vllm-{number:04d}",
                "address": f"127.1.{number // 250}.{number % 250 + 1}",
                "port": port,
            }
            for number in range(MANY)
        ]
        self.endpoints_path.write_text(json.dumps({"endpoints": entries}))


async def report(request):
    chance = random.Random(request.url.host)
    return web.Response(
        text=METRICS.format(running=chance.randrange(12), usage=round(chance.random(), 3))
    )


async def test_a_thousand_pods_can_be_read(tmp_path):
    async with serving(report, at=("0.0.0.0", 0)) as target:
        plan = Plan(
            others=(target.replace("0.0.0.0", "127.0.0.1"),),
            routing="original_dst",
            picker_flags=("--scrape-interval=5s",),
        )
        async with (
            running(Large, plan, tmp_path) as gateway,
            browsing(tmp_path / "profile") as page,
        ):
            async with gateway.client.get(gateway.operator_url("/debug/console")) as response:
                assert len(await response.read()) < MAX_BYTES
            await page.open(gateway.operator_url("/console"))
            await page.until(LIVE)
            lines = "document.querySelectorAll('#view-fleet tbody tr[aria-rowindex]')"
            assert 10 < await page.until(f"{lines}.length") < 100
            table = "document.querySelector('#view-fleet table')"
            assert await page.run(f"{table}.getAttribute('aria-rowcount')") == str(MANY + 1)
            await seen(page, "many", tmp_path)
            await page.run("document.querySelector('#view-fleet .scroll').scrollTop = 1e9")
            await page.until(f"[...{lines}].some((row) => row.innerText.includes('vllm-0999'))")
            await page.press("/")
            for letter in "0423":
                await page.press(letter)
            await page.until(f"{lines}.length === 1")
            assert "default/vllm-0423" in await page.run(f"{lines}[0].innerText")
            assert page.problems == []
