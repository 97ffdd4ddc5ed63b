"""Several pickers that are replicas of each other, behind one Envoy, and one of them goes."""

from bench.replicas.killed import Replicas, play
from e2e.corridor import TRANSPORT

SECONDS = 15.0


async def test_conversations_go_on_while_a_replica_is_killed(tmp_path):
    found = await play(Replicas.kill, SECONDS, tmp_path, TRANSPORT)
    assert (found.failed, found.first_error) == (0, "")
    assert found.struck >= 1
    assert found.cached > 0.5
