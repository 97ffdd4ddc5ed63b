"""A real redis-server, for tests of what replicas do with it."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

import pytest
import redis

from epp.gateway.processes import free_port

HERE = "127.0.0.1"
SECONDS = 30


def program():
    """Where redis-server is. Where `.ci/setup` can install it, tests fail without it."""
    found = shutil.which("redis-server")
    if found is None:
        said = "there is no redis-server: `apt-get install redis-server`, as `.ci/setup` does"
        if os.geteuid() == 0 and shutil.which("apt-get"):
            pytest.fail(said)
        pytest.skip(f"NOT TESTED: replicas over Redis: {said}")
    return found


class RedisProcess:
    """A server that keeps nothing on disk, and may be started again at its port."""

    def __init__(self, folder, *options):
        self.port = free_port()
        self.folder = folder
        self.options = options
        self.process = None

    @property
    def address(self):
        return f"redis://{HERE}:{self.port}"

    def start(self, *more):
        words = ("--bind", HERE, "--save", "", "--loglevel", "warning")
        self.process = subprocess.Popen(
            [program(), "--port", str(self.port), *words, *self.options, *more],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
        )

    def kill(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None

    def signal(self, number):
        assert self.process is not None
        self.process.send_signal(number)

    def do(self, *words, **more):
        """Give the server a command, once it is there."""
        end = time.monotonic() + SECONDS
        while True:
            with redis.Redis(HERE, self.port, socket_timeout=SECONDS, **more) as client:
                try:
                    return client.execute_command(*words)
                except (redis.ConnectionError, redis.BusyLoadingError):
                    if time.monotonic() > end:
                        raise


@contextlib.contextmanager
def redis_process(folder, *options):
    """Start a server; it is there once this returns."""
    made = RedisProcess(folder, *options)
    made.start()
    try:
        made.do("PING")
        yield made
    finally:
        made.kill()
