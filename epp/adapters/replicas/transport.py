"""What carries messages between replicas, as the exchange sees it."""

import asyncio
from collections.abc import AsyncIterable, Callable, Sequence
from typing import Final, Protocol

THIS_IS_YOU: Final = b""
"""The answer to a replica that need not send here: it is this one, or another worker of its pod.

Names list these among the others."""

Reply = Callable[[bytes], bool]
"""Sends a message to the replica that another one came from; returns whether there was room."""
Receive = Callable[[bytes, Reply], None]
"""Called with each message, and with what replies to it: `THIS_IS_YOU` to an own one."""


class Store(Protocol):
    """Keeps messages beyond the life of all replicas, for a time. Nothing of it raises."""

    async def keep(self, parts: AsyncIterable[bytes]) -> None:
        """Keep these in place of what is kept, all of them or none."""

    async def kept(self) -> Sequence[bytes]:
        """Return what is kept; nothing if any of it is not of a replica."""
        ...


class Transport(Protocol):
    """Sends messages to all other replicas. Nothing waits: what cannot be sent is dropped.

    `reached` is to how many a last sign of life could be sent.
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
        """The port that it listens at; 0: none."""
        ...

    @property
    def store(self) -> Store | None:
        """What keeps messages, if anything does."""
        ...

    def open(self) -> None:
        """Take in messages. Raises `ConfigError` if it cannot."""

    async def run(self) -> None:
        """Follow where the others are; never returns."""

    def look_up_soon(self) -> None:
        """Look for others now: one was heard that is not known."""

    def send(self, message: bytes) -> int:
        """Send a message to all; return to how many it could be sent."""
        ...

    async def stop(self) -> None:
        """Send what is not sent yet, within a second, and close."""

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
        """How many other replicas are known; who is known to two parts counts twice."""
        return sum([each.known for each in self._parts])

    @property
    def port(self) -> int:
        """The port of the first part that listens at one; 0: none."""
        return next((each.port for each in self._parts if each.port), 0)

    @property
    def store(self) -> Store | None:
        """What keeps messages in the first part that has it."""
        return next((each.store for each in self._parts if each.store is not None), None)

    def open(self) -> None:
        """Take in messages. Raises `ConfigError` if a part cannot."""
        for each in self._parts:
            each.open()

    async def run(self) -> None:
        """Follow where the others are; never returns."""
        async with asyncio.TaskGroup() as tasks:
            for each in self._parts:
                tasks.create_task(each.run(), name=f"replicas: {type(each).__name__}")

    def look_up_soon(self) -> None:
        """Look for others now: one was heard that is not known."""
        for each in self._parts:
            each.look_up_soon()

    def send(self, message: bytes) -> int:
        """Send a message to all; return to how many it could be sent."""
        return sum([each.send(message) for each in self._parts])

    async def stop(self) -> None:
        """Send what is not sent yet, within a second, and close."""
        await asyncio.gather(*(each.stop() for each in self._parts))

    def close(self) -> None:
        """Close at once."""
        for each in self._parts:
            each.close()
