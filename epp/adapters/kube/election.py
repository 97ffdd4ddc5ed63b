"""Leader election by a Lease: reads and writes it, and leads while it is held.

A leader leads until it reads that another holds the lease, however long it cannot renew its own:
two replicas that pick for a while are harmless, but none is an outage. client-go's leaders, which
write to the API, step down after a deadline (`RenewDeadline`).
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NoReturn

import msgspec

from epp.adapters.kube.api_connection import ApiConnection, ApiUnreachable
from epp.protocol.kube.election import (
    LeaderElectionConfig,
    LeaseAction,
    LeaseCandidate,
    LeaseSpec,
    acquired,
    released,
)
from epp.protocol.kube.objects import KubeObject
from epp.protocol.kube.resources import Resource
from epp.protocol.kube.watch import UNREADABLE, ApiRefused
from epp.system.logs import Log

_log = Log(__name__)

_VERBS = ("get", "create", "update")
_FAILURES = (ApiRefused, ApiUnreachable, TimeoutError, *UNREADABLE)
_RELEASE_SECONDS = 5.0
"""Limit for releasing the lease, the wait for a pending attempt included."""
_STANDBY_PERIODS = 10
"""How many retry periods a leader that is told to stop waits for another to lead.

A standby that is there takes up to 2.2 (client-go's `JitterFactor`), a pod that has yet to start as
long as that takes, and a lease that could not be released up to `lease_duration`.
"""
_LOOKS = 4
"""How often in a retry period a leader that has released the lease looks for its holder."""

Document = dict[str, Any]


class LeaseElection:
    """A candidate for one lease; calls `changed` when `leading` or `serving` changes.

    `serving`: this replica is the one that should get traffic. That is the leader, and one that has
    released the lease until another leads and gateways have noticed.
    """

    def __init__(
        self,
        connection: ApiConnection,
        lease: tuple[Resource[KubeObject], str],
        config: LeaderElectionConfig,
        changed: Callable[[], None],
    ) -> None:
        self.leading = self._handing_over = False
        self._connection = connection
        self._resource, self._name = lease
        self._config = config
        self._changed = changed
        self._candidate = LeaseCandidate(config)
        self._document: Document | None = None
        self._leader = ""
        self._problem = ""
        self._released = False
        self._writing = asyncio.Lock()

    @property
    def serving(self) -> bool:
        """Whether traffic should come here."""
        return self.leading or self._handing_over

    async def run(self) -> NoReturn:
        """Acquire and renew the lease until cancelled."""
        while True:
            async with self._writing:
                await self._attempt()
            retry = self._config.retry_period
            # client-go waits with jitter (JitterFactor 1.2) to acquire, without to renew.
            await asyncio.sleep(retry if self.leading else retry * random.uniform(1, 1.2))  # noqa: S311 (chance, not secrets)

    async def release(self) -> None:
        """Step down and write the lease without a holder; no attempt follows.

        If this replica led, that is tried again for a while, and it is `serving` until
        `handed_over` returns.
        """
        self._released, self._handing_over = True, self.leading
        self._step_down("released")
        error = ""
        try:
            async with asyncio.timeout(_RELEASE_SECONDS), self._writing:
                while (error := await self._release_error()) and self._handing_over:  # noqa: ASYNC110 (of an API server)
                    await asyncio.sleep(self._config.retry_period / _LOOKS)
        except TimeoutError:
            error = error or "no response in time"
        if error:
            _log.warning("lease.not_released", lease=self._name, error=error)

    async def _release_error(self) -> str:
        """Try to release the lease; return why it failed, or nothing."""
        try:
            document = self._document or await self._read()
            if document and _spec(document).holder_identity == self._config.identity:
                await self._write(released(document, _micro_time()))
        except _FAILURES as error:
            self._document = None  # unknown
            return str(error) or "no response in time"
        return ""

    async def handed_over(self) -> None:
        """After `release`, wait until another leads and is noticed, or none turns up.

        Until then this replica still reports ready: without a ready pod, a Service passes requests
        to terminating pods that report ready (`ProxyTerminatingEndpoints`).
        """
        if not self._handing_over:
            return
        periods, notice = _STANDBY_PERIODS * self._config.retry_period, self._config.notice_period
        try:
            async with asyncio.timeout(periods):
                while not await self._is_held():  # noqa: ASYNC110 (of an API server)
                    await asyncio.sleep(self._config.retry_period / _LOOKS)
            await asyncio.sleep(notice)
        except TimeoutError:
            _log.warning("lease.not_acquired", lease=self._name)
        finally:
            self._handing_over = False
            self._changed()

    async def _is_held(self) -> bool:
        """Whether another is known to hold the lease."""
        try:
            document = await self._read()
            holder = None if document is None else _spec(document).holder_identity
        except _FAILURES:  # it is read again
            return False
        self._observe_leader(holder)
        return holder not in (None, "", self._config.identity)

    async def _attempt(self) -> None:
        try:
            async with asyncio.timeout(self._config.renew_deadline):
                while not self._released and not await self._acquire_or_renew():
                    pass
        except ApiRefused as refusal:
            self._on_refusal(refusal)
        except (ApiUnreachable, TimeoutError) as error:
            self._report("lease.unreachable", error=str(error) or "no response in time")
        except UNREADABLE as error:
            self._report("lease.unreadable", error=str(error))
        else:
            self._problem = ""

    async def _acquire_or_renew(self) -> bool:
        """Read the lease, unless this candidate holds it, and write it if that is due.

        Returns False if it changed since it was read: it must be read again at once.
        """
        if not self.leading or self._document is None:
            self._document = await self._read()
        lease = None if self._document is None else _spec(self._document)
        action = self._candidate.read(lease, time.monotonic())
        if lease is not None:
            self._observe_leader(lease.holder_identity)
        if action is LeaseAction.WAIT:
            self._step_down("another holds the lease")
            return True
        current = self._document or self._absent_lease()
        wanted = acquired(current, action, self._config, _micro_time())
        self._document = None  # unknown while it is being written
        try:
            self._document = await self._write(wanted, create=action is LeaseAction.CREATE)
        except ApiRefused as refusal:
            # 409 Conflict: `metadata.resourceVersion` is not the current one (PUT), or another
            # candidate created the lease first (POST).
            if refusal.code != HTTPStatus.CONFLICT:
                raise
            return False
        self._on_renewal()
        return True

    def _on_refusal(self, refusal: ApiRefused) -> None:
        if refusal.code == HTTPStatus.FORBIDDEN:
            rule = self._resource.rule(_VERBS)
            self._report("lease.forbidden", error=str(refusal), missing_rule=rule)
            return
        self._report("lease.refused", error=str(refusal), code=refusal.code)

    # Leading.

    def _on_renewal(self) -> None:
        self._observe_leader(self._config.identity)
        if self._released:
            return
        if not self.leading:
            self.leading = True
            _log.info("lease.leading", lease=self._name, identity=self._config.identity)
            self._changed()

    def _step_down(self, reason: str) -> None:
        if self.leading:
            self.leading = False
            _log.warning("lease.standing_by", lease=self._name, reason=reason)
            self._changed()

    def _observe_leader(self, leader: str | None) -> None:
        if leader and leader != self._leader:
            self._leader = leader
            if leader != self._config.identity:
                _log.info("lease.leader", lease=self._name, leader=leader)

    def _report(self, problem: str, **fields: str | int) -> None:
        """Log a problem, unless it is the one logged last."""
        if problem != self._problem:
            self._problem = problem
            _log.warning(problem, lease=self._name, leading=self.leading, **fields)

    # The lease.

    def _absent_lease(self) -> Document:
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
        """Write the lease; an update is refused with 409 if it changed since it was read."""
        if create:
            return await self._send("POST", self._resource.path, document)
        return await self._send("PUT", f"{self._resource.path}/{self._name}", document)

    async def _send(
        self, method: str, path: str, document: Mapping[str, Any] | None = None
    ) -> Document:
        # controller-runtime (`leaderelection.NewResourceLock`): half of it, so that another
        # request can follow one that hangs.
        body = await self._connection.request(
            method, path, document, seconds=self._config.renew_deadline / 2
        )
        return msgspec.json.decode(body, type=Document)


def _spec(document: Document) -> LeaseSpec:
    return msgspec.convert(document.get("spec") or {}, LeaseSpec)


def _micro_time() -> str:
    """Return the time as a MicroTime: RFC 3339 in UTC, with exactly six decimals."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
