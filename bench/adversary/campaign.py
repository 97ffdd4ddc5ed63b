"""Runs attacks one after another and judges what others felt, and what remains."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import inf
from pathlib import Path

import aiohttp
from msgspec.structs import replace

from bench.adversary.attack import REMAINS_MB, SETTLE_S, Attack, BoundBroken, Finding, allowed_mb
from bench.adversary.ground import Ground, Setting, prepared
from bench.progress import Progress
from epp.adapters.extproc.transports import Transport
from epp.gateway.processes import ProcessDied

_CALM_S = 2.0
_MORE_FILES = 16
"""Files that may be open beyond those before an attack: connections of scrapes come and go."""
_MAX_HELD_S = 0.1
_RUNNING = "llm_d_epp_request_running"


async def run(
    attacks: Sequence[Attack], transport: Transport, logs: Path, progress: Progress
) -> list[Finding]:
    """Carry attacks out in their order, each kind of picker once unless an attack ends it."""
    found: list[Finding] = []
    for setting, group in groupby(attacks, key=lambda attack: attack.setting):
        left = list(group)
        while left:
            found += await _on_one(setting, left, transport, logs, progress)
    return found


async def _on_one(
    setting: Setting, left: list[Attack], transport: Transport, logs: Path, progress: Progress
) -> list[Finding]:
    """Attack one picker until it is beyond use or nothing is left; the attacks done are removed."""
    found: list[Finding] = []
    async with prepared(setting, transport, logs) as ground:
        await _warm_up(ground)
        before = ground.footprint.now
        while left:
            attack = left.pop(0)
            finding = await _attempt(attack, ground, before)
            found.append(finding)
            progress.step(_line(finding))
            if finding.broken:
                break
        if ground.process.alive() and not found[-1].broken:
            fault = await ground.terminate()
            if fault:
                broken = (*found[-1].broken, fault)
                found[-1] = replace(found[-1], broken=broken)
                progress.step(f"after these: {fault}")
    return found


async def _warm_up(ground: Ground) -> None:
    await asyncio.sleep(_CALM_S)
    await ground.page()
    await ground.prober.window()
    await asyncio.sleep(_CALM_S)
    window = await ground.prober.window()
    if window.errors:
        raise ProcessDied(f"the picker errs before it is attacked: {window.errors}")


async def _attempt(attack: Attack, ground: Ground, before: float) -> Finding:
    start, files = ground.footprint.reset(), ground.footprint.files
    await ground.prober.window()
    holds = await ground.holds()
    broken, sent = [], 0
    started = time.monotonic()
    try:
        async with asyncio.timeout(attack.seconds):
            sent = await attack.strike(ground)
    except TimeoutError:
        broken.append(f"the attack is not over after {attack.seconds:g} s")
    except (BoundBroken, OSError, aiohttp.ClientError) as error:
        broken.append(str(error) or repr(error))
    seconds = time.monotonic() - started
    broken += await _settled(ground, files, before)
    longest = inf
    with suppress(aiohttp.ClientError, TimeoutError):
        longest = _longest(holds, await ground.holds())
    window = await ground.prober.window()
    peak, after = ground.footprint.peak, ground.footprint.now
    allowed = allowed_mb(attack, sent)
    excess = window.worst_ms - window.control_ms
    for wrong, says in (
        (ground.footprint.killed, "it was killed at the memory limit"),
        (not ground.process.alive() and not ground.footprint.killed, "the process ended"),
        (excess > attack.worst_ms, f"others waited {window.worst_ms:,.0f} ms"),
        (longest > _MAX_HELD_S, f"the event loop was held for up to {longest:g} s"),
        (sum(window.errors.values()), f"others' errors: {window.errors}"),
        (peak - start > allowed, f"{peak - start:,.0f} MiB more, {allowed:,.0f} may be"),
    ):
        if wrong:
            broken.append(says)
    return Finding(
        name=attack.name,
        group=attack.group,
        transport=ground.transport,
        worst_ms=window.worst_ms,
        control_ms=window.control_ms,
        held_ms=1e3 * longest,
        requests=window.requests,
        errors=sum(window.errors.values()),
        sent_mb=round(sent / (1 << 20), 1),
        grown_mb=round(peak - start, 1),
        after_mb=round(after - before, 1),
        seconds=round(seconds, 2),
        broken=tuple(broken),
    )


def _longest(before: Mapping[float, int], after: Mapping[float, int]) -> float:
    """The least bound of a histogram that all values are within that have come."""
    more = {bound: count - before.get(bound, 0) for bound, count in after.items()}
    return min(bound for bound, count in more.items() if count == max(more.values()))


async def _settled(ground: Ground, files: int, before: float) -> Iterable[str]:
    """Wait until nothing of the attack is left; what is left after all, in words."""
    loop = asyncio.get_running_loop()
    end = loop.time() + SETTLE_S
    left = ["the metrics page is not answered"]
    while left and ground.process.alive() and loop.time() < end:
        with suppress(aiohttp.ClientError, TimeoutError):
            left = await _left(ground, files, before)
        await asyncio.sleep(0.1)
    return left if ground.process.alive() else ()


async def _left(ground: Ground, files: int, before: float) -> list[str]:
    left = []
    running = await ground.metric(_RUNNING)
    # One of the prober's own may be under way.
    if running > 2:
        left.append(f"{running:g} requests in flight stay")
    if ground.footprint.files > files + _MORE_FILES:
        left.append(f"{ground.footprint.files - files} files stay open")
    stays = ground.footprint.now - before
    if stays > REMAINS_MB:
        left.append(f"{stays:,.0f} MiB stay")
    return left


def _line(finding: Finding) -> str:
    verdict = "; ".join(finding.broken) or "ok"
    return (
        f"{finding.transport} {finding.name}: {finding.worst_ms:,.0f} ms"
        f" (beside: {finding.control_ms:,.0f}, held: {finding.held_ms:g}),"
        f" {finding.grown_mb:+,.0f} MiB of {finding.sent_mb:,.0f}, {verdict}"
    )
