"""Starts of `epp` that cost no start of Python: forks of a process that has imported it."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PARENT = """
import gc, json, os, socket, sys
import epp.adapters.telemetry.logs, epp.app.options, epp.app.pools, epp.app.workers.unfit
import epp.cli.main, epp.demo.command, epp.up.command

gc.freeze()
asked = socket.socket(fileno=int(sys.argv[1]))
while True:
    said, streams, *_ = socket.recv_fds(asked, 1 << 16, 3)
    if not said:
        sys.exit()
    child = os.fork()
    if not child:
        break
    for each in streams:
        os.close(each)
    asked.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
asked.close()
for number, each in enumerate(streams):
    os.dup2(each, number)
    os.close(each)
sys.argv[1:], folder, first = json.loads(said)
os.chdir(folder)
exec(first)
sys.exit(epp.cli.main.main())
"""
Ran = subprocess.CompletedProcess[str]


@pytest.fixture(scope="package")
def parent() -> Iterator[socket.socket]:
    """The connection to the process that forks, which ends with it."""
    ours, theirs = socket.socketpair()
    number = theirs.fileno()
    with subprocess.Popen([sys.executable, "-c", PARENT, str(number)], pass_fds=[number]), ours:
        theirs.close()
        yield ours


@pytest.fixture
def epp(parent: socket.socket) -> Callable[..., Ran]:
    """Run `epp` with words, and `first` some statements; `given` is its standard input."""

    def run(
        *words: str, given: bytes = b"", stdout: int = -1, folder: str = ".", first: str = ""
    ) -> Ran:
        pipes = [os.pipe() for _ in range(3)]
        (stdin, writing), (out, printing), (err, failing) = pipes
        os.write(writing, given)
        os.close(writing)
        streams = [stdin, printing if stdout < 0 else stdout, failing]
        said = json.dumps([words, str(Path(folder).absolute()), first])
        socket.send_fds(parent, [said.encode()], streams)
        for each in (stdin, printing, failing):
            os.close(each)
        texts = []
        for each in (out, err):
            with os.fdopen(each) as stream:
                texts.append(stream.read())
        return subprocess.CompletedProcess(words, int(parent.recv(16)), *texts)

    return run
