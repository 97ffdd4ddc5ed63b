from bench.profiling import PARTS, REST, counted, report, shares_of
from bench.table import grid_cells

STACKS = """\
thread (71): MainThread;main (a.py:1);run (b.py:2);receive (epp/protocol/extproc/exchange.py:9) 25
thread (71): MainThread;main (a.py:1);CPyDef_fleet___Fleet___apply (x.so);memcpy (libc.so.6) 20
thread (71): MainThread;data_received (epp/adapters/extproc/a.py:3);write (libc.so.6) 40
thread (71): MainThread;main (a.py:1);uv__io_poll (linux.c:1);epoll_pwait (libc.so.6) 900
thread (71): MainThread;main (a.py:1);uv__run_timers (timer.c:1) 10
thread (72): uvloop_0;_worker (thread.py:81);0x7f (libc.so.6) 500
thread (0x7F2A): MainThread;main (a.py:1);receive (epp/protocol/extproc/exchange.py:9) 5
"""


def test_samples_count_for_their_innermost_part_and_waiting_threads_for_nothing():
    found = shares_of(counted(STACKS))
    assert found == dict.fromkeys((*PARTS, REST), 0) | {
        "exchange": 30,
        "model": 20,
        "sockets": 40,
        REST: 10,
    }


def test_no_samples_are_no_error():
    assert set(shares_of(counted("")).values()) == {0}


def test_of_how_many_samples_the_shares_are_is_said():
    found = report({"2k": counted(STACKS), "20k": counted("")})
    *_, (name, *cells) = [row[:3] for row in grid_cells(found, found.grids[0])]
    assert (name, cells) == ("samples", ["100", "0"])
