"""What becomes of the memory of messages, counted in pages that the system had to hand out."""

import gc
import os
import platform
import subprocess
import sys

import grpc.aio
import pytest

from epp.adapters.extproc.transports import server_class
from tests.adapters.ext_proc_peer import (
    Director,
    Peer,
    body,
    head,
    response_body,
    response_head,
    serving,
)
from tests.native.built import needs_native
from tests.tasks import until

PROBE = """
from resource import RUSAGE_SELF, getrusage
from epp.system.memory import keep_freed_memory

def faults():
    before = getrusage(RUSAGE_SELF).ru_minflt
    for _ in range(100):
        bytes(1 << 20)
    return getrusage(RUSAGE_SELF).ru_minflt - before

keep_freed_memory()
faults()
print(faults())
"""


OTHERS = platform.libc_ver()[0] != "glibc" or "asan" in os.environ.get("LD_PRELOAD", "")


@pytest.mark.skipif(
    OTHERS,
    reason="NOT TESTED: freed memory used again: other allocators than glibc's (musl's, a"
    " sanitizer's) are left alone; run it on glibc, without a sanitizer",
)
def test_freed_memory_is_used_again():
    said = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    assert int(said.stdout) < 256  # the pages of one such piece, of a hundred


async def converse(channel, count):
    """Finish some exchanges, and break off as many."""
    for _ in range(count):
        finished, broken = Peer(channel), Peer(channel)
        await finished.ask(head(), body())
        await finished.send(response_head(), response_body())
        await finished.call.done_writing()
        await finished.rest()
        await broken.ask(head(), body())
        broken.call.cancel()


@needs_native
async def test_streams_and_connections_are_freed_without_the_garbage_collector():
    director = Director()
    async with serving(server_class("native"), director) as (server, channel):
        await converse(channel, 2)
        await until(lambda: server.streams == 0)
        while gc.collect():  # what others left, and then what that held where it is not seen
            pass
        gc.disable()
        try:
            for _ in range(5):
                own = (("grpc.use_local_subchannel_pool", 1),)
                where = f"127.0.0.1:{server.port}"
                async with grpc.aio.insecure_channel(where, options=own) as another:
                    await converse(another, 5)
            await until(lambda: server.streams == 0)
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = {type(each).__module__ for each in gc.garbage}
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not {name for name in left if name.startswith(("epp", "uvloop"))}
