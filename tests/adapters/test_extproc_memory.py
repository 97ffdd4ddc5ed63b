"""What becomes of the memory of messages, counted in pages that the system had to hand out."""

import os
import platform
import subprocess
import sys

import pytest

PROBE = """
from resource import RUSAGE_SELF, getrusage
from epp.adapters.extproc.memory import keep_freed_memory

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
