"""What `epp replay` says while it runs, on a terminal and without one."""

from io import StringIO
from queue import SimpleQueue

from epp.replay.results.bar import Requests, RunsBar


def test_without_a_terminal_each_ended_run_is_a_line():
    times = iter([0.0, 65.0, 130.0])
    stream = StringIO()
    with RunsBar(2, stream, lambda: next(times)) as bar:
        bar.done("first")
        bar.done("second")
    assert stream.getvalue() == "[1/2] 1:05 first\n[2/2] 2:10 second\n"


def test_without_a_terminal_a_line_says_how_far_all_runs_are():
    times, ended = iter([0.0, 30.0, 30.0, 60.0, 90.0, 90.0]), [0, 0]
    stream = StringIO()
    with RunsBar(2, stream, lambda: next(times), Requests(ended, [1000, 3000])) as bar:
        bar.show()
        ended[1] = 900
        bar.done("first", 0)  # it ended before all were sent, as by --duration
        ended[0] = 700
        bar.show()
    assert stream.getvalue() == (
        "[0/2] 0:30 0 of 4,000 requests, ? left\n"
        "[1/2] 1:00 first\n"
        "[1/2] 1:30 1,900 of 4,000 requests, 1:39 left\n"
    )
    assert stream.getvalue().replace("\n", "").isprintable()


def test_without_a_terminal_progress_is_said_again_and_again():
    lines, said = Lines(), 3
    with RunsBar(1, lines, requests=Requests([7], [9]), pause=0.001):
        for _ in range(said):
            assert "7 of 9 requests" in lines.written.get(timeout=60)


class Lines(StringIO):
    def __init__(self):
        super().__init__()
        self.written = SimpleQueue[str]()

    def write(self, text):
        self.written.put(text)
        return len(text)


class Terminal(StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_the_bar_shows_the_time_left():
    times = iter([0.0, 0.0, 10.0])
    stream = Terminal()
    with RunsBar(4, stream, lambda: next(times)) as bar:
        assert "0/4 runs" in stream.getvalue()
        bar.done("first")
        assert "1/4 runs" in stream.getvalue()
        assert "25%, 0:30 left  first" in stream.getvalue()
    assert stream.getvalue().endswith("\r\x1b[2K")
