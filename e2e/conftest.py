"""Fixtures of the end-to-end tests; one event loop a module, so that tests can share processes."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from e2e.corridor import Corridor, Plan, corridor
from e2e.echo import Echo, echoing
from tests.kept_grpc import kept_grpc
from tests.needs_vllm import pytest_runtest_setup

__all__ = ["kept_grpc", "pytest_runtest_setup"]  # the second is what tests marked `vllm` need

Open = Callable[..., AbstractAsyncContextManager[Corridor]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a module in the loop that its fixtures live in."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def echo() -> AsyncIterator[Echo]:
    """A model server that tells what it saw."""
    async with echoing() as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def second_echo() -> AsyncIterator[Echo]:
    """Another one."""
    async with echoing() as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Open:
    """Open a corridor for one test: `async with start(Plan(...), "folder of logs") as corridor`."""

    def open_corridor(plan: Plan, folder: str = "logs") -> AbstractAsyncContextManager[Corridor]:
        directory = tmp_path / folder
        directory.mkdir()
        return corridor(plan, directory)

    return open_corridor
