"""Fuzzing of framing, sessions, exchanges and the codec, and of what bodies and pages cost.

    python -m tests.native.fuzz TARGET [libFuzzer's options]

needs atheris (Python 3.11) and runs until told to stop, guided by coverage. The kernels take part
in that, and are checked by sanitizers, where they were built by
`CC=clang WARMPICK_SANITIZE=fuzzer`. The tests run every target on random bytes.
"""

import logging
import sys
from contextlib import suppress

import structlog

from epp.adapters.extproc.http2.framing import Deframer
from epp.adapters.extproc.http2.session import (
    CLOSED,
    ENDED,
    FAULT,
    MESSAGE,
    OPENED,
    ConnectionFailure,
    Session,
)
from tests.native import wire
from tests.native.framing_oracle import PlainDeframer

LIMITS = {
    "max_streams": 8,
    "stream_window": 1 << 16,
    "max_header_bytes": 2_000,
    "max_queued": 9_000,
}
MAX_ACTIONS = 300


class Choices:
    """Decisions, out of bytes; zeros when they have run out."""

    def __init__(self, data):
        self._data = data
        self._at = 0

    @property
    def left(self):
        return self._at < len(self._data)

    def bytes(self, count):
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def below(self, bound):
        """A number in range(bound), which may be up to 64 Ki."""
        return int.from_bytes(self.bytes(1 if bound <= 256 else 2), "big") % bound

    def one_of(self, options):
        return options[self.below(len(options))]


def framing(data):
    """The kernel does what its twin does, however the bytes are split."""
    choices = Choices(data)
    limit = choices.below(1 << 16)
    kernel, twin = Deframer(limit), PlainDeframer(limit)
    while choices.left:
        piece = choices.bytes(choices.below(64))
        assert kernel.feed(piece) == twin.feed(piece)
        assert kernel.fault == twin.fault
        assert kernel.fault or kernel.within == twin.within


# Frames that a peer may send.


def _number(choices):
    return choices.below(12)


def _block(choices):
    many = choices.below(40)
    more = [(b"x-%d" % at, choices.bytes(choices.below(60))) for at in range(many)]
    return wire.request(
        method=choices.one_of((b"POST", b"POST", b"GET", b"", None)),
        path=choices.one_of((wire.PATH, wire.PATH, b"/", b"", b"/grpc.health.v1.Health/Check")),
        content_type=choices.one_of((b"application/grpc", b"application/grpc+proto", b"x", None)),
        more=more,
    )


def _payload(choices):
    size = choices.below(1 << 13)
    whole = choices.one_of((True, True, False))
    content = choices.bytes(choices.below(20)).ljust(size, b"x")
    framed = wire.message(content, choices.below(256) == 255)
    return framed if whole else framed[: choices.below(len(framed) + 1)]


_FRAMES = (
    lambda c: wire.headers(2 * _number(c) + 1, end=c.below(4) == 3),
    lambda c: wire.headers(2 * _number(c) + 1, end=c.below(4) == 3),
    lambda c: wire.headers(_number(c), _block(c), end=c.below(2) == 1),
    lambda c: wire.headers(_number(c), c.bytes(c.below(100)), end=c.below(2) == 1),
    lambda c: wire.data(2 * _number(c) + 1, _payload(c), end=c.below(4) == 3),
    lambda c: wire.data(2 * _number(c) + 1, _payload(c), end=c.below(4) == 3),
    lambda c: wire.data(_number(c), c.bytes(c.below(50)), end=c.below(2) == 1),
    lambda c: wire.reset(_number(c), c.below(14)),
    lambda _: wire.ping(),
    lambda c: wire.settings(window=c.below(1 << 16) << c.below(17)),
    lambda c: wire.settings(frame=c.below(1 << 16), streams=c.below(10), headers=c.below(5_000)),
    lambda c: wire.settings(header_table=c.below(1 << 16)),
    lambda _: wire.acknowledged(),
    lambda c: wire.window_update(_number(c), c.below(1 << 16) << c.below(17)),
    lambda c: wire.goaway(_number(c), c.below(14)),
    lambda c: wire.frame(wire.Kind.PRIORITY, _number(c), c.bytes(5)),
    lambda c: wire.frame(wire.Kind.CONTINUATION, _number(c), c.bytes(c.below(60)), c.below(256)),
    lambda c: wire.frame(c.below(256), _number(c), c.bytes(c.below(80)), c.below(256)),
    lambda c: c.bytes(c.below(64)),
)


class _User:
    """What is done with a session's streams, and what must hold."""

    def __init__(self):
        self.session = Session(max_message_bytes=1 << 12, **LIMITS)
        self.said = {}

    def hear(self, events):
        for stream, event, value in events:
            heard = self.said.setdefault(stream, [])
            assert CLOSED not in heard
            if event == OPENED:
                assert not heard
            else:
                assert heard[0] == OPENED
            if event in {MESSAGE, ENDED, FAULT}:
                assert FAULT not in heard
                assert ENDED not in heard
            if event == MESSAGE:
                assert len(value) <= 1 << 12
            heard.append(event)

    def receive(self, data):
        """Hand over what was sent; give what is left for another turn."""
        self.hear(self.session.receive(data))
        return data[len(data) - self.session.unread :]

    def receive_all(self, data):
        while data:
            data = self.receive(data)

    def act(self, choices):
        session = self.session
        streams = list(self.said)
        if not streams:
            return
        stream = choices.one_of(streams)
        _ACTIONS[choices.below(len(_ACTIONS))](stream, session, choices)

    def check(self):
        session = self.session
        assert session.queued == sum(stream.queued for stream in session.streams.values())
        assert len(session.streams) <= LIMITS["max_streams"]
        for stream in session.streams.values():
            assert not stream.closed


_ACTIONS = (
    lambda stream, _, c: stream.send(c.bytes(c.below(40)).ljust(c.below(1 << 16), b"y")),
    lambda stream, _, c: stream.send(c.bytes(c.below(40))),
    lambda stream, _, c: stream.end(c.below(17), c.one_of(("", "no", "a\n%ü\ud800"))),
    lambda stream, *_: stream.refuse(415),
    lambda stream, _, c: stream.reset(c.below(14)),
    lambda stream, *_: stream.hold(),
    lambda stream, *_: stream.release(),
    lambda _, session, c: session.take(c.below(1 << 16)),
    lambda _, session, __: session.take(1 << 20),
    lambda _, session, __: session.ping(),
    lambda _, session, c: session.announce_end() if c.below(8) == 7 else None,
    lambda _, session, c: session.go_away() if c.below(8) == 7 else None,
)


def session(data):
    """Whatever a peer sends and a user does, a session holds what it promises."""
    choices, user = Choices(data), _User()
    pending = wire.greeting() if choices.below(16) else b""
    with suppress(ConnectionFailure):
        for _ in range(MAX_ACTIONS):
            if not choices.left:
                break
            kind = choices.below(4)
            if kind < 2:
                pending += choices.one_of(_FRAMES)(choices)
            elif kind == 2:
                size = len(pending) if choices.below(2) else choices.below(1 << 16)
                pending = user.receive(pending[:size]) + pending[size:]
            else:
                user.act(choices)
            if choices.below(2):
                user.hear(user.session.take_events())
            user.check()
        user.receive_all(pending)
        user.check()
    while user.session.take(1 << 16):
        pass
    for stream in user.session.abandon():
        assert stream.closed
        stream.send(b"too late")
        stream.end(0)
    assert not user.session.streams
    assert user.session.take(1 << 16) == b""


def exchange(data):
    """Whatever a peer says, nothing raises, and every exchange that began has ended, once."""
    from tests.native.fuzz_exchange import converse  # noqa: PLC0415 (it imports half the product)

    converse(Choices(data))


def codec(data):
    """The compiled codec reads what its twin reads, and refuses what that refuses."""
    from epp.protocol.extproc import codec as compiled  # noqa: PLC0415 (as above)
    from epp.protocol.extproc import protobuf  # noqa: PLC0415
    from epp.protocol.extproc.errors import ProtocolError  # noqa: PLC0415

    found = []
    for each in (compiled, protobuf):
        try:
            found.append(each.decode(data))
        except ProtocolError:
            found.append(None)
    assert found[0] == found[1]


def body(data):
    """A body is read as it arrives as it is in one piece, by the kernel as by its twin."""
    from epp.errors import MalformedRequest  # noqa: PLC0415 (as above)
    from epp.model.request import Api  # noqa: PLC0415
    from epp.protocol.bodies.body import Body  # noqa: PLC0415
    from tests.native.built import loaded  # noqa: PLC0415

    choices = Choices(data)
    api = choices.one_of([each for each in Api if each is not Api.OTHER])
    size = 1 + choices.below(256)
    rest = choices.bytes(len(data))
    found: list[object] = []
    for kind in loaded("epp.protocol.bodies.body_reader"):
        read = Body(api, kind.BodyReader)
        for at in range(0, len(rest), size):
            read.feed(rest[at : at + size])
        try:
            found.append(read.parse())
        except MalformedRequest as error:
            found.append(str(error))
    assert found[0] == found[1]


def body_work(data):
    """A body costs what its bytes are worth."""
    from tests.native import fuzz_work  # noqa: PLC0415 (as above)

    read, make = fuzz_work.body(Choices(data))
    fuzz_work.cost_of_a_byte_is_constant(read, make)
    fuzz_work.memory_is_bounded(read, make(fuzz_work.SMALL))


def page_work(data):
    """A metrics page costs what its bytes are worth."""
    from tests.native import fuzz_work  # noqa: PLC0415 (as above)

    read, make = fuzz_work.page(Choices(data))
    fuzz_work.cost_of_a_byte_is_constant(read, make)
    fuzz_work.memory_is_bounded(read, make(fuzz_work.SMALL))


TARGETS = {
    "framing": framing,
    "session": session,
    "exchange": exchange,
    "codec": codec,
    "body": body,
}
WORK = {"body_work": body_work, "page_work": page_work}
"""They measure, which takes longer."""


def main():
    import atheris  # noqa: PLC0415 (not a dependency: there are no wheels for every Python)

    target = (TARGETS | WORK)[sys.argv.pop(1)]
    with atheris.instrument_imports(include=["epp", "tests.native"]):
        from tests.native import fuzz_exchange  # noqa: F401, PLC0415 (so that it is instrumented)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
