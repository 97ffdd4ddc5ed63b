"""Objects that the collector does not see are freed as others are, however deep they lie."""

import os
import subprocess
import sys
from gc import is_tracked

from epp.model.candidate import Candidate
from tests.app.test_decision_ring import Kept
from tests.reachable import reachable, referents

NESTED = """
from epp.model.decision import Score

# CPython puts off what lies deeper than fifty, in 3.13 than 9,950 with what led there.
for depth in (*range(40, 60), *range(9_900, 9_960)):
    for _ in range(50 if depth < 60 else 1):
        value = Score("queue-scorer", 1.0, [0.5])
        for _ in range(depth):
            value = (value,)
        beside = [Score("queue-scorer", float(each), ()) for each in range(10)]
        del value
print(len(beside))
"""


def test_what_is_freed_deep_inside_others_leaves_the_memory_beside_it():
    # CPython's checks of its memory: a byte that is written before an object ends the process.
    ended = subprocess.run(
        [sys.executable, "-c", NESTED],
        env=os.environ | {"PYTHONMALLOC": "debug"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (0, "10\n"), ended.stderr


def test_what_is_acyclic_does_not_lead_to_itself():
    kept = Kept()
    kept.serve("hello")
    kept.serve("hello, and what came of it")
    kept.ask("one in flight")
    compiled = hasattr(Candidate, "__mypyc_attrs__")
    found = [
        each
        for each in reachable([kept.ring, kept.fleet])
        if hasattr(type(each), "__mypyc_attrs__") and not is_tracked(each)
    ]
    assert any(isinstance(each, Candidate) for each in found) is compiled
    for each in found:
        led = [each, *reachable(each)]
        assert not any(each is other for holder in led for other in referents(holder))
