"""Leader election by a Lease, active-passive: one candidate leads, the others stand by.

A leader that cannot renew in time stops of itself, by a timer that no request holds up; time is
monotonic, and counted from before a request was sent.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NoReturn

import msgspec
import structlog

from epp.adapters.kube.api_connection import ApiConnection, ApiUnreachable
from epp.protocol.kube.election import (
    LeaderElectionConfig,
    LeaseAction,
    LeaseCandidate,
    LeaseView,
    held,
    released,
)
from epp.protocol.kube.objects import KubeObject
from epp.protocol.kube.resources import Resource
from epp.protocol.kube.watch import ApiRefused

_log = structlog.get_logger(__name__)

_VERBS = ("get", "create", "update")
_RELEASE_SECONDS = 5.0
"""An attempt that is under way is waited for."""

Document = dict[str, Any]


class LeaseElection:
    """Tries to hold the lease `name`; `changed` is called when `leading` changes."""

    def __init__(
        self,
        connection: ApiConnection,
        lease: tuple[Resource[KubeObject], str],
        terms: LeaderElectionConfig,
        changed: Callable[[], None],
    ) -> None:
        self.leading = False
        self._connection = connection
        self._resource, self._name = lease
        self._terms = terms
        self._changed = changed
        self._election = LeaseCandidate(terms)
        self._document: Document | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._leader = ""
        self._problem = ""
        self._released = False
        self._writing = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Try, and when leading renew, until cancelled."""
        while True:
            async with self._writing:
                await self._attempt()
            retry = self._terms.retry
            await asyncio.sleep(retry if self.leading else retry * random.uniform(1, 1.2))  # noqa: S311 (chance, not secrets)

    async def release(self) -> None:
        """Let go of the lease, for another to take it at once; nothing is tried any more."""
        self._released = True
        self._step_down("released")
        try:
            async with asyncio.timeout(_RELEASE_SECONDS), self._writing:
                await self._give_up()
        except (ApiRefused, ApiUnreachable, TimeoutError) as error:
            _log.warning("lease.not_released", lease=self._name, error=str(error))

    async def _give_up(self) -> None:
        document = self._document or await self._read()
        if document and _view(document).spec.holder_identity == self._terms.identity:
            await self._write(released(document, _stamp()))

    async def _attempt(self) -> None:
        try:
            async with asyncio.timeout(self._terms.retry):
                while not self._released and not await self._step():
                    pass
        except ApiRefused as refusal:
            self._refused(refusal)
        except (ApiUnreachable, TimeoutError) as error:
            self._report("lease.unreachable", error=str(error) or "no answer in time")
        except msgspec.MsgspecError as error:
            self._report("lease.unreadable", error=str(error))
        else:
            self._problem = ""

    async def _step(self) -> bool:
        """Read the lease, unless it is known to be ours, and write it where that is due.

        False where it is not as it was read: it must be read anew, and at once.
        """
        sent = time.monotonic()
        if not self.leading or self._document is None:
            self._document = await self._read()
        view = None if self._document is None else _view(self._document)
        step = self._election.read(view, time.monotonic())
        self._heard(self._election.holder)
        if step is LeaseAction.WAIT:
            self._step_down("another holds the lease")
            return True
        known = self._document or self._blank()
        wanted = held(known, step, self._terms, _stamp())
        self._document = None  # unknown while it is being written
        try:
            self._document = await self._write(wanted, create=step is LeaseAction.CREATE)
        except ApiRefused as refusal:
            if refusal.code != HTTPStatus.CONFLICT:
                raise
            return False
        self._renewed(sent)
        return True

    def _refused(self, refusal: ApiRefused) -> None:
        if refusal.code == HTTPStatus.FORBIDDEN:
            rule = self._resource.rule(_VERBS)
            self._report("lease.forbidden", error=str(refusal), missing_rule=rule)
            return
        self._report("lease.refused", error=str(refusal), code=refusal.code)

    # What leading means.

    def _renewed(self, sent: float) -> None:
        self._heard(self._terms.identity)
        if self._released:
            return
        left = sent + self._terms.deadline - time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(left, self._step_down, "it was not renewed in time")
        if not self.leading:
            self.leading = True
            _log.info("lease.leading", lease=self._name, identity=self._terms.identity)
            self._changed()

    def _step_down(self, reason: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.leading:
            self.leading = False
            _log.warning("lease.standing_by", lease=self._name, reason=reason)
            self._changed()

    def _heard(self, leader: str) -> None:
        if leader and leader != self._leader:
            self._leader = leader
            if leader != self._terms.identity:
                _log.info("lease.leader", lease=self._name, leader=leader)

    def _report(self, problem: str, **fields: str | int) -> None:
        """Log a problem when it begins."""
        if problem != self._problem:
            self._problem = problem
            _log.warning(problem, lease=self._name, **fields)

    # The lease.

    def _blank(self) -> Document:
        return {
            "apiVersion": f"{self._resource.group}/{self._resource.version}",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._resource.namespace},
        }

    async def _read(self) -> Document | None:
        try:
            return await self._send("GET", f"{self._resource.path}/{self._name}")
        except ApiRefused as refusal:
            if refusal.code != HTTPStatus.NOT_FOUND:
                raise
            return None

    async def _write(self, document: Mapping[str, Any], *, create: bool = False) -> Document:
        """Write it; an update fails with a conflict where it is not as it was read."""
        if create:
            return await self._send("POST", self._resource.path, document)
        return await self._send("PUT", f"{self._resource.path}/{self._name}", document)

    async def _send(
        self, method: str, path: str, document: Mapping[str, Any] | None = None
    ) -> Document:
        body = await self._connection.request(method, path, document, seconds=self._terms.retry)
        return msgspec.json.decode(body, type=Document)


def _view(document: Document) -> LeaseView:
    return msgspec.convert(document, LeaseView)


def _stamp() -> str:
    """The time as Kubernetes' MicroTime."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
