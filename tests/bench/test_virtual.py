"""The simulator's engines in virtual time."""

from array import array

import pytest
from model_server.simulator.scheduler import Request, Token
from model_server.simulator.settings import Limits

from bench.accuracy.virtual import Pods
from epp.replay.simulation.clock import Clock


def asked(size, answer):
    return Request(array("I", range(size)), answer, (Token(7, "") for _ in range(answer)))


def test_a_pod_tells_each_token_and_is_idle_again():
    clock, told = Clock(), []
    limits = Limits(block_size=4, num_gpu_blocks=32)
    pods = Pods(["a", "b"], limits, clock, lambda each: told.append((clock.now, each)))
    first, second = asked(9, 3), asked(9, 1)
    pods.submit("a", first)
    assert pods.queues("a") == (0, 1)
    clock.run(lambda: False)
    assert [each.request for _, each in told] == [first] * 3
    times = [when for when, _ in told]
    assert times == sorted(set(times))
    assert times[0] > 0
    assert pods.queues("a") == (0, 0)
    pods.submit("a", second)
    clock.run(lambda: False)
    assert (first.cached_tokens, second.cached_tokens) == (0, 8)


def test_what_cannot_fit_is_refused():
    pods = Pods(["a"], Limits(block_size=4, num_gpu_blocks=3), Clock(), lambda _: None)
    with pytest.raises(ValueError, match="longer than the pool"):
        pods.submit("a", asked(9, 1))
