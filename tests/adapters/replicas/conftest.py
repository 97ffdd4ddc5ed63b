"""What tests of replicas over Redis share."""

import pytest

from tests.redis_process import redis_process


@pytest.fixture
def server(tmp_path):
    with redis_process(tmp_path) as made:
        yield made
