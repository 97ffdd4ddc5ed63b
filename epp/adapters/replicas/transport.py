"""How messages reach other replicas, as the exchange sees it."""

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Final, Protocol

THIS_IS_YOU: Final = b""
"""The answer to a sender that need not send here: this replica, or another worker of its pod.

Looked-up names contain the addresses of these, too."""

Reply = Callable[[bytes], bool]
"""Answers the sender of a message with another one; returns whether there was room."""
Receive = Callable[[bytes, Reply], None]
"""Called with each message and its `Reply`, which answers own ones with `THIS_IS_YOU`.

It does not raise."""


class Store(Protocol):
    """Keeps messages for a time, beyond the life of all replicas. Its methods do not raise."""

    async def keep(self, parts: AsyncIterable[bytes]) -> None:
        """Replace the kept messages by these: by all of them, or not at all."""

    async def kept(self) -> Sequence[bytes]:
        """Return the kept messages; none if one of them is not from a replica."""
        ...


class Transport(Protocol):
    """Sends messages to all other replicas. Nothing waits: what cannot be sent is dropped.

    `reached` is the number of replicas that the last heartbeat could be sent to.
    """

    reached: int

    @property
    def unsent(self) -> int:
        """How many messages were dropped."""
        ...

    @property
    def known(self) -> int:
        """How many other replicas are known."""
        ...

    @property
    def port(self) -> int:
        """The port at which it listens; 0: none."""
        ...

    def open(self) -> None:
        """Start to receive. Raises `ConfigError` if it cannot."""

    async def run(self) -> None:
        """Follow the addresses of the others; never returns."""

    def look_up_soon(self) -> None:
        """Look up addresses now: a message came from a replica at an unknown one."""

    async def tried(self) -> None:
        """Wait until what all messages go through can be used, or an attempt has failed."""

    def send(self, message: bytes) -> int:
        """Send a message to all; return how many it could be sent to."""
        ...

    async def stop(self) -> None:
        """Send the rest, within a second, and close."""

    def close(self) -> None:
        """Close at once."""


class Transports:
    """Several transports as one: each sends all messages."""

    def __init__(self, parts: Sequence[Transport]) -> None:
        self.reached = 0
        self._parts: Final = parts

    @property
    def unsent(self) -> int:
        """How many messages were dropped."""
        return sum([each.unsent for each in self._parts])

    @property
    def known(self) -> int:
        """How many other replicas are known; one that two parts know counts twice."""
        return sum([each.known for each in self._parts])

    @property
    def port(self) -> int:
        """The port of the first part that listens at one; 0: none."""
        return next((each.port for each in self._parts if each.port), 0)

    def open(self) -> None:
        """Start to receive. Raises `ConfigError` if a part cannot."""
        for each in self._parts:
            each.open()

    async def run(self) -> None:
        """Follow the addresses of the others; never returns."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._parts:
                tasks.create_task(each.run(), name=f"replicas: {type(each).__name__}")

    def look_up_soon(self) -> None:
        """Look up addresses now: a message came from a replica at an unknown one."""
        for each in self._parts:
            each.look_up_soon()

    async def tried(self) -> None:
        """Wait until what all messages go through can be used, or an attempt has failed."""
        await asyncio.gather(*(each.tried() for each in self._parts))

    def send(self, message: bytes) -> int:
        """Send a message to all; return how many it could be sent to."""
        return sum([each.send(message) for each in self._parts])

    async def stop(self) -> None:
        """Send the rest, within a second, and close."""
        await asyncio.gather(*(each.stop() for each in self._parts))

    def close(self) -> None:
        """Close at once."""
        for each in self._parts:
            each.close()
