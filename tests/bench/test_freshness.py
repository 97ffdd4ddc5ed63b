"""Servers that publish load, in virtual time, and what the picker believes between reports."""

from array import array
from functools import partial

from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from model_server.simulator.scheduler import Request, Token
from model_server.simulator.settings import Limits

from bench.accuracy.mooncake import Line
from bench.accuracy.virtual import Clock, Pods
from bench.freshness.replay import TimedReplay
from bench.freshness.servers import Server
from bench.freshness.traffic import traffic
from epp.config.file import POLICIES, load
from epp.model.request import Api, InferenceRequest, Prompt, RequestId

LIMITS = Limits(block_size=64, num_gpu_blocks=5000)
STEP = 0.8
"""Seconds of the longest step of prompts of up to 30,000 tokens."""
LONGEST = 30_000 / 1.6e6
QUICK = settings(max_examples=10, derandomize=True, phases=(Phase.explicit, Phase.generate))

ARRIVALS = st.lists(
    st.tuples(st.floats(0, 3), st.integers(1, 30_000), st.integers(1, 200)), min_size=1, max_size=12
)


def asked(number, size, answer):
    return Request(array("I", [number] * size), answer, (Token(7, "") for _ in range(answer)))


@QUICK
@given(ARRIVALS)
def test_steps_that_are_computed_at_once_end_when_they_would_one_by_one(arrivals):
    def served(submit_to):
        clock, told = Clock(), []

        def tell(sampled):
            if sampled.first or sampled.finish is not None:
                told.append((round(clock.now, 6), sampled.request.prompt_len, sampled.first))

        submit, at = submit_to(clock, tell), 0.0
        for number, (gap, size, answer) in enumerate(arrivals):
            at += gap
            clock.at(at, partial(submit, asked(number, size, answer)))
        clock.run(lambda: False)
        return sorted(told)

    def one_by_one(clock, tell):
        return partial(Pods(["a"], LIMITS, clock, tell).submit, "a")

    assert served(lambda clock, tell: Server(LIMITS, clock, tell).submit) == served(one_by_one)


def lines(arrivals):
    at, made = 0.0, []
    for number, (gap, size, answer) in enumerate(arrivals):
        at += gap * 1000
        ids = tuple(range(number << 10, (number << 10) + -(-size // 512)))
        made.append(Line(int(at), size, answer, ids))
    return made


@QUICK
@given(ARRIVALS)
def test_between_rare_reports_the_load_is_the_engines(arrivals):
    """All requests are counted at any moment; those that wait to a step, and a prompt in it.

    The engine counts a prompt that it computes as running: where the picker believes that another
    one of the step came first, it is one more or less that waits, while any is computed.
    """
    trace = traffic(lines(arrivals), seed=1, copies=2)
    replay = TimedReplay(trace, load(POLICIES["linear"]).scheduling, 1000.0, seed=1, pods=2)
    believed, true, computed = [], [], []

    def computing(pod, waiting):
        """How many prompts an engine computes: no token was heard of them, nor do they wait."""
        sent = [each for each in replay.fleet.in_flight.values() if each.pod.endpoint.id == pod]
        return sum(each.began is None for each in sent) - waiting

    def look():
        probe = InferenceRequest(id=RequestId("p"), api=Api.CHAT, prompts=(Prompt(b"x"),))
        quote = replay.fleet.quote(probe, replay.clock.now)
        candidates = replay.fleet.candidates(quote, replay.clock.now)
        believed.append([(each.waiting, each.running, each.kv_usage) for each in candidates])
        true.append([replay.servers[each.endpoint.id].load for each in candidates])
        pods = [each.endpoint.id for each in candidates]
        computed.append([computing(pod, replay.servers[pod].load.waiting) for pod in pods])
        replay.clock.at(replay.clock.now + 0.05, look)

    replay.clock.at(0.0, look)
    replay.run(warm_up=0.0)
    reach = int(STEP / 0.05)
    for place, loads in enumerate(believed):
        around = true[max(0, place - reach) : place + reach + 1]
        for pod, (waiting_now, running_now, usage) in enumerate(loads):
            now = true[place][pod]
            assert waiting_now + running_now == now.waiting + now.running
            waiting = [each[pod].waiting for each in around]
            slack = int(computed[place][pod] > 0)
            assert min(waiting) - slack <= waiting_now <= max(waiting) + slack
            # Of a prompt that is under way the engine has allocated what it has computed.
            assert abs(usage - now.usage) <= LONGEST * (now.running + now.waiting + 1)


def test_a_fractional_copy_leaves_whole_conversations_out():
    one = Line(0, 1024, 5, (0, 1))
    other = Line(3000, 1536, 5, (0, 1, 2))
    drawn = [len(traffic([one, other], seed, copies=1.5).calls) for seed in range(6)]
    assert set(drawn) == {2, 4}
