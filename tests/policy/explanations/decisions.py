"""Decisions to be explained."""

import random

from epp.config.file import POLICIES, load
from epp.policy.explanations.ranking import measures
from epp.policy.scheduler import Scheduler
from tests.model.rig import Rig
from tests.policy.routing import routed
from tests.strategies import request, text


def decided(policy="least-ttft", pods=4, seed=1, loads=()):
    rig = Rig(pods)
    for number in loads:
        rig.send(f"pod-{number}", f"before {number}", text(900, f"{number}"))
    scheduling = load(POLICIES.get(policy, policy)).scheduling
    scheduler = Scheduler(rig.fleet, scheduling, random.Random(seed).randrange)  # noqa: S311
    return routed(scheduler, request("r", text(300)), rig.now), measures(scheduling.profiles)
