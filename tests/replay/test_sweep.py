"""The runs of a sweep: in processes of their own, counted, and without traces of each other."""

import signal
import subprocess
import sys
import weakref
from concurrent.futures.process import BrokenProcessPool

import pytest

from epp.errors import ConfigError
from epp.replay.plan import PodPlan, RunPlan, Traffic
from epp.replay.policies import NAMED
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import Task, counted, on_cores, play, processes


class Deadly(Task, frozen=True):
    """Kills the process that it is sent to."""

    def __reduce__(self):
        return signal.raise_signal, (signal.SIGKILL,)


def test_a_process_that_is_killed_is_said():
    deadly = Deadly(
        traffic=Traffic(source="chat"),
        plan=RunPlan(policy=NAMED["random"], pods=[]),
        cell="",
        workload="",
        load=1.0,
    )
    with pytest.raises(ConfigError, match=r"--jobs: one of 2 processes was killed"):
        list(on_cores([deadly, deadly], 2))


SMALL_TASKS = [
    Task(
        traffic=Traffic(source="chat:sessions=6,rate=4", requests=20),
        plan=RunPlan(policy=NAMED[policy], pods=[PodPlan()] * 2),
        cell="",
        workload="",
        load=1.0,
    )
    for policy in ("round-robin", "random")
]


def test_a_run_keeps_nothing_of_the_one_before():
    runs = []

    def simulation(trace, plan):
        run = Simulation(trace, plan)
        runs.append(weakref.ref(run))
        return run

    for task in SMALL_TASKS:
        play(task, simulation)
    assert runs[0]() is None


@pytest.mark.parametrize("jobs", [1, 2])
def test_runs_count_the_requests_that_have_ended(jobs):
    ended = counted(SMALL_TASKS)
    for number, digest in on_cores(SMALL_TASKS, jobs, ended):
        # What ended since the count was written last is missing, and nothing else.
        assert 0 < ended[number] <= digest.figures["requests"] == 20


def test_ctrl_c_ends_a_process_in_the_middle_of_a_run():
    with processes(1) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(signal.raise_signal, signal.SIGINT).result()


KILLED = """
import os, signal
from epp.replay.simulation.run import Simulation
from epp.replay.sweep import processes

if __name__ == "__main__":
    pool = processes(1)
    pool.submit(os.getpid).result()
    pool.submit(signal.pause)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_processes_end_with_the_one_that_began_them(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(KILLED)
    ran = subprocess.run(  # which waits until nobody holds the pipe any more
        [sys.executable, program], stdout=subprocess.PIPE, check=False, timeout=60
    )
    assert ran.returncode == -signal.SIGKILL
