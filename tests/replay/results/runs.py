"""Made-up runs: a queue in front of each pod, so that figures hang together as real ones do."""

import random
from math import nan
from typing import Any

from epp.replay.results.digest import digest
from epp.replay.results.played import Played, PodSample
from epp.replay.simulation.outcome import CallOutcome, CallStatus

# Share of the reusable prefix found cached, unevenness of pods, share of requests refused.
POLICIES = {
    "round-robin": (0.22, 0.3, 0.0),
    "least-request": (0.25, 0.1, 0.0),
    "weighted": (0.74, 0.5, 0.0),
    "session-affinity": (0.78, 0.9, 0.0),
    "least-ttft": (0.72, 0.12, 0.0),
    "shedding": (0.70, 0.12, 0.09),
}


def outcome(**values):
    plain: dict[str, Any] = {
        "call": 0,
        "at": 0.0,
        "status": CallStatus.SERVED,
        "endpoint": 0,
        "prompt": 100,
        "generated": 11,
        "ttft": 0.5,
        "tpot": 0.02,
        "end_to_end": 0.7,
        "cached": 0,
        "reusable": 0,
        "predicted_cached": 0,
        "predicted_ttft": nan,
        "queued": 0.0,
    }
    return CallOutcome(**plain | values)


def nowhere(status, **values):
    """A request that got no token."""
    unknown: dict[str, Any] = {
        "ttft": nan,
        "tpot": nan,
        "end_to_end": nan,
        "queued": nan,
        "generated": 0,
    }
    return outcome(status=status, **unknown | values)


def played(policy, seed, *, pods=8, load=1.0, requests=3000, **more):
    seconds = 600.0
    rng = random.Random(f"{policy} {seed} {pods} {load}")  # noqa: S311
    hit, uneven, refused = POLICIES[policy]
    shapes = random.Random(seed)  # noqa: S311 - the same requests for every policy
    skew = [each / pods for each in range(pods)]
    free = [0.0] * pods
    work: list[list[tuple[float, float]]] = [[] for _ in range(pods)]
    outcomes = []
    for call in range(requests):
        at = call * seconds / requests + shapes.uniform(0, 0.2)
        prompt = int(min(60_000, shapes.lognormvariate(8.6, 0.9)))
        reusable = int(prompt * shapes.choice((0.05, 0.3, 0.6, 0.95))) * (call > 200)
        pod = min(
            range(pods),
            key=lambda each: free[each] + rng.uniform(0, 0.4) + 3 * (uneven - 0.1) * skew[each],
        )
        if rng.random() < refused:
            outcomes.append(
                nowhere(CallStatus.REFUSED, call=call, at=at, prompt=prompt, endpoint=-1)
            )
            continue
        cached = int(reusable * min(1.0, rng.gauss(hit, 0.1)))
        cost = 0.02 + (prompt - cached) * 6.5e-5 * load * 8 / pods
        start = max(at, free[pod])
        free[pod] = start + cost
        tokens = shapes.randint(20, 400)
        tpot = 0.02 + 0.02 * rng.random() * load
        ttft = free[pod] - at
        work[pod].append((at, free[pod] + tpot * tokens))
        outcomes.append(
            outcome(
                call=call,
                at=at,
                endpoint=pod,
                prompt=prompt,
                generated=tokens,
                ttft=ttft,
                tpot=tpot,
                queued=start - at,
                end_to_end=ttft + tpot * (tokens - 1),
                cached=cached,
                reusable=reusable,
                predicted_cached=int(cached * rng.choice((1, 1, 1, 1.2))),
                predicted_ttft=ttft * rng.lognormvariate(0.05, 0.35),
                preempted=int(rng.random() < 0.01),
            )
        )
    return Played(
        policy=policy,
        seed=seed,
        cell=more.pop("cell", "chat"),
        outcomes=outcomes,
        seconds=seconds,
        pods=pods,
        endpoints=pods,
        samples=[
            PodSample(float(at), pod, 0, sum(a <= at < b for a, b in work[pod]))
            for at in range(0, int(seconds), 10)
            for pod in range(pods)
        ],
        load=load,
        **more,
    )


def digests(policies=POLICIES, seeds=(1, 2, 3), **more):
    return [digest(played(policy, seed, **more)) for policy in policies for seed in seeds]


def run(outcomes, **more):
    """A run of ten seconds on two pods with these outcomes."""
    plain: dict[str, Any] = {"policy": "a", "seed": 1, "cell": "c", "seconds": 10.0, "pods": 2}
    return Played(**plain | {"endpoints": 2, "outcomes": outcomes} | more)
