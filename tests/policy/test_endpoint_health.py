"""What endpoints' health does to traffic: late pages and shed requests leave nobody out."""

from collections import Counter
from statistics import mean

import pytest

from epp.model.endpoint import EndpointId, Load
from epp.model.events import LoadReported, ScrapeFailed, ScrapeFailure
from epp.model.request import Usage
from epp.model.request_events import Aborted, Failure, Finished, FirstToken
from tests.policy.virtual_traffic import Traffic

PREFILL_SECONDS, ANSWER_TOKENS = 0.005, 100
BLOCK, BLOCKS = 16, 10_001
LATE_ABOVE = 120


class LatePages(Traffic):
    """Endpoints that serve whatever comes; while many run they show no page in time."""

    def __init__(self, policy, seed):
        super().__init__(policy, seed=seed)
        self.free = dict.fromkeys(self.running, 0.0)
        for place, each in enumerate(self.running):
            self.after(place / len(self.running), self.scrape, each)

    def scrape(self, of):
        running = self.running[of]
        if running > LATE_ABOVE:
            self.apply(ScrapeFailed(of, ScrapeFailure.LATE))
        else:
            held = running * (self.tokens + ANSWER_TOKENS / 2) / BLOCK / (BLOCKS - 1)
            load = Load(
                running=float(running),
                kv_usage=held,
                block_size=BLOCK,
                num_blocks=BLOCKS,
                at=self.clock.now,
            )
            self.apply(LoadReported(of, load))
        self.after(1.0, self.scrape, of)

    def serve(self, identity, at):
        self.running[at] += 1
        self.free[at] = max(self.free[at], self.clock.now) + PREFILL_SECONDS
        self.clock.at(self.free[at], lambda: self.apply(FirstToken(identity)))
        # A step takes the longer, the more decode: 10 seconds where 100 run.
        self.after(5.0 + self.running[at] / 20, self.leave, identity, at)

    def leave(self, identity, at):
        self.running[at] -= 1
        self.apply(Finished(identity, Usage(self.tokens, ANSWER_TOKENS)))

    def believed(self):
        """Return what a prompt is believed to take at each, over what it takes."""
        return [
            pod.speed.prefill.seconds(self.tokens, 0)
            * pod.pace.prefill_slowness.value
            / PREFILL_SECONDS
            for pod in self.fleet.pods.values()
        ]

    def left_out(self):
        return sum(not pod.may_be_picked for pod in self.fleet.pods.values())


@pytest.mark.parametrize("policy", ["least-ttft", "least-request"])
@pytest.mark.parametrize("seed", range(2))
def test_a_burst_that_makes_pages_late_leaves_nobody_out_and_passes(policy, seed):
    """100 requests at each of eight endpoints, and 30 % more for 20 seconds."""
    traffic = LatePages(policy, seed)
    traffic.arrive(80.0, 90.0, traffic.serve)
    traffic.clock.at(30.0, lambda: traffic.arrive(24.0, 50.0, traffic.serve))
    seen = traffic.watch(90.0, lambda: (Counter(traffic.running), traffic.left_out()))
    running = {at: list(each.values()) for at, (each, _) in seen if at >= 15.0}
    assert not any(out for _, (_, out) in seen)
    assert max(max(each) / mean(each) for each in running.values()) <= 1.5
    assert max(max(each) for at, each in running.items() if at >= 70.0) <= 130
    assert all(0.4 < each < 2 for each in traffic.believed())


def test_where_most_pages_are_late_all_keep_their_share():
    traffic = Traffic("least-request", pods=10)
    names = list(traffic.running)
    picked: Counter[EndpointId] = Counter()

    def serve(identity, at):
        picked[at] += 1
        traffic.after(0.1, traffic.apply, FirstToken(identity))
        traffic.after(3.0, traffic.apply, Finished(identity))

    def scrape():
        traffic.apply(LoadReported(names[0], Load(at=traffic.clock.now)))
        for each in names[1:]:
            traffic.apply(ScrapeFailed(each, ScrapeFailure.LATE))
        traffic.after(1.0, scrape)

    scrape()
    traffic.clock.at(10.0, lambda: traffic.arrive(40.0, 40.0, serve))
    traffic.watch(40.0, lambda: None)
    assert set(picked) == set(names)
    assert max(picked.values()) < 1.3 * mean(picked.values())


class Shedding(Traffic):
    """Endpoints that answer a share of requests with 503 at once, and the others well.

    `dead` answer all with it. A stream begins `seconds` after it was sent; else all comes then.
    """

    def __init__(self, share, seconds, *, stream=True, dead=(), seed=0):
        super().__init__("least-request", tokens=4, seed=seed)
        self.share, self.seconds, self.stream, self.dead = share, seconds, stream, dead
        self.failed: Counter[EndpointId] = Counter()

    def send(self, answer, *, stream=True):
        super().send(answer, stream=self.stream)

    def serve(self, identity, at):
        if at in self.dead or self.chance.random() < self.share:
            self.failed[at] += 1
            refused = Aborted(identity, refused=True, failure=Failure.GATEWAY)
            self.after(0.002, self.apply, refused)
            return
        seconds = self.about(self.seconds)
        if self.stream:
            self.after(seconds, self.apply, FirstToken(identity))
        self.after(seconds + 3.0 * self.stream, self.apply, Finished(identity))

    def out(self):
        return sum(pod.outlier.ejected is not None for pod in self.fleet.pods.values())

    def mean_out(self, seconds, rate=80.0):
        self.arrive(rate, seconds, self.serve)
        return mean(out for _, out in self.watch(seconds, self.out))


@pytest.mark.parametrize(("seconds", "stream"), [(0.2, True), (3.0, True), (30.0, False)])
@pytest.mark.parametrize(
    ("share", "played", "most"), [(0.05, 60.0, 0.1), (0.1, 300.0, 0.1), (0.3, 200.0, 0.5)]
)
def test_a_fleet_that_sheds_some_requests_stays_whole(share, played, most, seconds, stream):
    assert Shedding(share, seconds, stream=stream, seed=1).mean_out(played) <= most


@pytest.mark.parametrize("dead", [1, 3])
@pytest.mark.parametrize(("seconds", "stream"), [(0.2, True), (3.0, True), (30.0, False)])
def test_an_endpoint_that_fails_everything_is_out_within_five_requests(dead, seconds, stream):
    names = {EndpointId(f"default/pod-{number}") for number in range(dead)}
    traffic = Shedding(0.0, seconds, stream=stream, dead=names)
    traffic.mean_out(29.0)
    assert set(traffic.ejected) == names
    assert set(traffic.failed.values()) == {5}


def test_endpoints_that_fail_everything_are_found_where_the_others_shed():
    names = {EndpointId(f"default/pod-{number}") for number in range(3)}
    traffic = Shedding(0.1, 3.0, dead=names, seed=3)
    traffic.mean_out(29.0)
    assert set(traffic.ejected) == names
    assert max(traffic.failed[each] for each in names) <= 6
