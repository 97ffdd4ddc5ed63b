"""An engine that publishes KV events, what is made of them, and what it then really hits."""

import asyncio
import contextlib
import json
import random
import sys
from array import array

import aiohttp
import zmq
import zmq.asyncio

from e2e.corridor import quiet_port
from epp.adapters.kvevents.kv_event_listener import KvEventListener
from epp.adapters.kvevents.publishers import PORT_LABEL, REPLAY_PORT_LABEL, SubscriptionSettings
from epp.gateway.processes import Process, spawn
from epp.model.caches.block_pool.pool import BlockPool
from epp.model.caches.kv_event_mirror import KvEventMirror
from epp.model.caches.reported_blocks import ReportedBlocks
from epp.model.endpoint import Endpoint
from epp.model.kv_changes import CacheChanged, CacheFeedLost, CacheFeedUp
from epp.model.prompts.block_hasher import BlockHasher
from epp.model.request import Prompt

BLOCK = 32
BLOCKS = 65
START_SECONDS = 300
DEADLINE = 60
TRIES = 3
"""Answers of one content after which nothing more is on its way to be published."""


def simulator(model, ports):
    """The command that starts a simulator."""
    config = {
        "enable_kv_cache_events": True,
        "endpoint": f"tcp://127.0.0.1:{ports[0]}",
        "replay_endpoint": f"tcp://127.0.0.1:{ports[1]}",
        "topic": f"kv@pod-0@{model}",
    }
    flags = {
        "--port": "0",
        "--served-model-name": model,
        "--block-size": str(BLOCK),
        "--num-gpu-blocks-override": str(BLOCKS),
        "--kv-events-config": json.dumps(config),
        "--speed": "20",
    }
    return (sys.executable, "-m", "model_server.simulator", *_words(flags))


def launcher(folder, model, ports):
    """The command that starts real vLLM."""
    flags = {
        "--served-model-name": model,
        "--block-size": str(BLOCK),
        "--num-gpu-blocks": str(BLOCKS),
        "--max-model-len": str(BLOCK * (BLOCKS - 1)),
        "--kv-events-port": str(ports[0]),
        "--kv-replay-port": str(ports[1]),
        "--pod-name": "pod-0",
    }
    return (sys.executable, "-m", "model_server.launch", str(folder), *_words(flags))


def _words(flags):
    return (word for pair in flags.items() for word in pair)


class Followed:
    """One engine, and a pool that nothing but its events fill."""

    def __init__(self, model):
        self.model = model
        self.ports = (quiet_port(), quiet_port())
        self.hasher = BlockHasher(b"end to end", BLOCK)
        self.events = []
        self.changed = asyncio.Event()
        self.endpoint = Endpoint(
            "default",
            "pod-0",
            "127.0.0.1",
            1,
            labels={PORT_LABEL: str(self.ports[0]), REPLAY_PORT_LABEL: str(self.ports[1])},
        )
        self.renew()
        self.before = 0
        self.listener = KvEventListener(self.apply, SubscriptionSettings(reconnect=(0.05, 0.5)))
        self.listener.watch(self.endpoint)

    @property
    def batches(self):
        """How many batches were taken in so far, of this engine and of those before it."""
        return self.listener.counts()[self.endpoint.id].batches

    def renew(self):
        self.pool = BlockPool((BLOCKS - 1) * BLOCK, BLOCK)
        self.mirror, self.reported = KvEventMirror(self.hasher), ReportedBlocks(self.pool)

    def apply(self, event):
        self.events.append(event)
        if isinstance(event, CacheFeedLost):
            self.renew()
        elif isinstance(event, CacheChanged):
            for change in event.changes:
                self.mirror.apply(change, self.reported)
        self.changed.set()

    @property
    def complete(self):
        """What was last said of the stream: followed from the start, in part (False), or lost."""
        for event in reversed(self.events):
            if isinstance(event, CacheFeedUp):
                return event.complete
            if isinstance(event, CacheFeedLost):
                return None
        return None

    async def until(self, condition):
        async with asyncio.timeout(DEADLINE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    async def last_batch(self):
        """The number of the last batch that the engine published; -1 before the first."""
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(f"tcp://127.0.0.1:{self.ports[1]}")
            await dealer.send_multipart([b"", bytes(8)])
            last = -1
            async with asyncio.timeout(DEADLINE):
                while (frames := await dealer.recv_multipart())[-1]:
                    last = int.from_bytes(frames[-2], "big")
            return last

    async def synced(self):
        """Wait until all that the engine has to say was published and taken in."""
        last, same = await self.last_batch(), 0
        while same < TRIES:
            again = await self.last_batch()
            same, last = (same + 1, last) if again == last else (0, again)
        await self.until(lambda: self.batches - self.before > last)

    def predict(self, tokens, salt=""):
        """How many tokens of a prompt the engine would find."""
        data = array("I", tokens).tobytes()
        chain = self.hasher.chain(Prompt(data, exact=True), self.model, salt)
        return min(self.pool.match(chain.hashes), chain.lookup) * BLOCK


class Running:
    """The engine's process and a client of it."""

    def __init__(self, followed: Followed, process: Process, session: aiohttp.ClientSession):
        self.followed = followed
        self.process = process
        self.session = session

    def _body(self, tokens, answer, salt):
        body = {"model": self.followed.model, "prompt": tokens, "max_tokens": answer}
        body |= {"ignore_eos": True, "temperature": 0}
        return body | ({"cache_salt": salt} if salt else {})

    async def ask(self, tokens, answer, salt=""):
        """Complete a prompt; the usage."""
        body = self._body(tokens, answer, salt) | {"return_token_ids": True}
        async with self.session.post("/v1/completions", json=body) as response:
            said = await response.json()
            assert response.status == 200, said
        return said

    async def hang_up(self, tokens, answer, salt=""):
        """Leave after the first bytes of an answer."""
        body = self._body(tokens, answer, salt) | {"stream": True}
        async with self.session.post("/v1/completions", json=body) as response:
            await response.content.readany()

    async def compare(self, tokens, salt=""):
        """Ask when nothing else runs: (predicted, actual) cached tokens."""
        await self.followed.synced()
        predicted = self.followed.predict(tokens, salt)
        said = await self.ask(tokens, 1, salt)
        return predicted, said["usage"]["prompt_tokens_details"]["cached_tokens"]

    async def stop(self, seconds):
        """End the engine when all that it said was taken in: what comes then is another's."""
        await self.followed.synced()
        await self.process.stop(seconds)


@contextlib.asynccontextmanager
async def running(followed, argv, directory):
    """Start the engine, and end it."""
    followed.before = followed.batches
    process = await spawn("engine", argv, log_dir=directory)
    try:
        ready = await process.wait_ready_line(START_SECONDS)
        url = f"http://{ready['host']}:{ready['port']}"
        async with aiohttp.ClientSession(url) as session:
            yield Running(followed, process, session)
    finally:
        await process.stop(20)


@contextlib.asynccontextmanager
async def listening(followed):
    task = asyncio.create_task(followed.listener.run())
    try:
        yield followed
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()


class Traffic:
    """Conversations that share beginnings, several at a time, under eviction pressure."""

    def __init__(self, running, seed):
        self.running = running
        self.random = random.Random(seed)
        self.said = [(self._fresh(40, 200), "") for _ in range(4)]

    def _fresh(self, least, most):
        return [self.random.randrange(100, 250) for _ in range(self.random.randrange(least, most))]

    def _next(self):
        """A prompt that continues one before it, or begins like one."""
        tokens, salt = self.random.choice(self.said)
        cut = self.random.choice([len(tokens), self.random.randrange(1, len(tokens) + 1)])
        prompt = tokens[:cut] + self._fresh(1, 120)
        return prompt[-600:], self.random.choice([salt, salt, salt, "pepper"])

    async def _one(self, step):
        prompt, salt = self._next()
        if step % 7 == 6:
            await self.running.hang_up(prompt, 60, salt)
            return
        answer = self.random.randrange(1, 70)
        said = await self.running.ask(prompt, answer, salt)
        generated = said["choices"][0].get("token_ids") or []
        self.said = [*self.said[-15:], (prompt + generated, salt)]

    async def flow(self, workers, steps):
        async def work(number):
            for step in range(number, number + steps):
                await self._one(step)

        await asyncio.gather(*(work(number) for number in range(workers)))

    def probes(self, count):
        """Prompts whose cached part is worth asking for."""
        return [(tokens + self._fresh(1, 5), salt) for tokens, salt in self.said[-count:]]
