"""LMCache's agent traces: the full text of every request and answer, session by session.

The tokens are those of the simulator's tokenizer. Sessions begin at random moments; within one,
a request comes when the answer before it is there and the recorded pause is over.
"""

import io
import random
import tarfile
from array import array
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
from model_server.simulator.tokenizer import Tokenizer

from bench.accuracy.trace import Call, Content, Trace, decompressed
from epp.replay.traffic.lmcache import LONGEST_THINK, SESSIONS_PER_SECOND, message_ends

NAME = "lmcache_agent_trace.tar.zst"
PODS, BLOCKS = 2, 4_096


class _Line(msgspec.Struct, frozen=True):
    timestamp: int  # microseconds
    input: str
    output: str
    session_id: str


def read(path: Path, count: int | None = None) -> Trace:
    """Read the first `count` requests in order of their sessions. Raises `ConfigError`."""
    decoder = msgspec.json.Decoder(_Line)
    lines = []
    with tarfile.open(fileobj=io.BytesIO(decompressed(path))) as archive:
        for member in archive:
            file = archive.extractfile(member)
            lines += [decoder.decode(line) for line in file or ()]
    return trace(lines, count)


def trace(lines: Iterable[_Line], count: int | None = None) -> Trace:
    """Let the sessions begin in a random order."""
    sessions = defaultdict(list)
    for line in lines:
        if line.input:
            sessions[line.session_id].append(line)
    draw, tokenizer, at = random.Random(0), Tokenizer(), 0.0
    calls: list[Call] = []
    names = sorted(sessions)
    draw.shuffle(names)
    for name in names:
        at += draw.expovariate(SESSIONS_PER_SECOND)
        before: _Line | None = None
        cuts: set[int] = set()
        for line in sorted(sessions[name], key=lambda each: each.timestamp):
            pause = (line.timestamp - before.timestamp) / 1e6 if before else 0.0
            after = len(calls) - 1 if before else None
            cuts = message_ends(line.input, before.input if before else None, cuts)
            make = partial(content, line, tuple(sorted(cuts)), tokenizer)
            calls.append(Call(at, make, after, min(pause, LONGEST_THINK)))
            before = line
    return Trace(name="agent", calls=calls[:count], pods=PODS, blocks=BLOCKS)


def content(line: _Line, cuts: Sequence[int], tokenizer: Tokenizer) -> Content:
    """Tokenize message by message, as a chat template keeps them apart."""
    ids: array[int] = array("I")
    marks, text_marks, start, end = [], [], 0, 0
    for cut in cuts:
        message = line.input[start:cut]
        start = cut
        ids += tokenizer.encode(message)
        end += len(message.encode())
        marks.append(len(ids))
        text_marks.append(end)
    answer = tokenizer.encode(line.output or " ")
    return Content(ids, line.input.encode(), answer, marks, text_marks)
