"""The real run: vLLM on the CPU, Envoy and the picker, and documents that many ask about."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp
import msgspec
from msgspec.structs import replace

from bench.progress import Progress
from epp.demo.client import Player
from epp.demo.figures import Sample
from epp.demo.pools import DemoPool, Size, choose_pool
from epp.demo.testbed import PolicyName, prepare, start_testbed
from epp.demo.workload import Conversation, Workload, conversations, shipped_sections
from epp.errors import ConfigError, WarmpickError

SERVERS = 2
BLOCK = 32
BLOCKS = 160
CONTEXT = 4096
BATCH = 2048
MODELS = Path(__file__).parents[2] / ".cache" / "models"
WORKLOAD = Workload(
    conversations=50, seconds=70, dossiers=8, sections=2, turns=(1, 1), answer=(8, 16)
)
"""Eight documents of about 830 tokens; a server has room for five or six of them."""


class Failed(WarmpickError):
    """A request of the real run was not answered: the figures would mean nothing."""


class Question(msgspec.Struct, frozen=True):
    """What was sent, as the server's tokens, `at` seconds; `answer` tokens came back."""

    at: float
    prompt: tuple[int, ...]
    answer: int


def planned(seed: int) -> Sequence[Conversation]:
    """Return who asks what and when."""
    return conversations(shipped_sections(), WORKLOAD, seed)


async def ask(
    policies: Sequence[PolicyName], plan: Sequence[Conversation], progress: Progress
) -> tuple[Sequence[Question], Mapping[str, Sequence[Sample]]]:
    """Ask all under each policy, of servers with empty caches.

    Raises `Failed`, and `ConfigError` without vLLM.
    """
    pool = _pool()
    questions: Sequence[Question] = ()
    seen: dict[str, Sequence[Sample]] = {}
    with tempfile.TemporaryDirectory(prefix="replay-validation-") as directory:
        logs = Path(directory)
        await prepare(pool, logs)
        for policy in policies:
            progress.step(f"{policy}: {SERVERS} servers start")
            async with start_testbed(pool, policy, logs) as testbed:
                questions = questions or await _tokenized(testbed.servers[0], pool.model, plan)
                await warm_up(testbed.servers, pool.model)
                progress.step(f"{policy}: {len(plan)} questions in {WORKLOAD.seconds:g} s")
                samples: list[Sample] = []
                await Player(testbed.url, pool.model, samples.append).play(plan)
            if errors := [each.error for each in samples if each.error]:
                raise Failed(f"{len(errors)} of {len(samples)} failed: {errors[0]}")
            seen[policy] = sorted(samples, key=lambda each: each.conversation)
    return questions, seen


def _pool() -> DemoPool:
    try:
        pool = choose_pool("vllm", Size(servers=SERVERS), MODELS)
    except ImportError as error:
        raise ConfigError(f"{error}; make vllm installs it") from None
    settings = {
        "--served-model-name": pool.model,
        "--block-size": BLOCK,
        "--num-gpu-blocks": BLOCKS,
        "--max-model-len": CONTEXT,
        "--max-num-batched-tokens": BATCH,
    }
    flags = (text for name, value in settings.items() for text in (name, str(value)))
    # Faster than bfloat16 on processors without AVX-512.
    argv = (*pool.argv[:4], *flags, "--", "--dtype", "float32")
    return replace(pool, argv=argv, workload=WORKLOAD, cache_tokens=BLOCKS * BLOCK)


async def warm_up(servers: Sequence[str], model: str) -> None:
    """Have each server answer once: its first answer takes longer.

    What is asked fills no block, so that caches stay empty.
    """
    body = {"model": model, "prompt": "Hello", "max_tokens": 4}
    async with aiohttp.ClientSession() as session:
        for server in servers:
            async with session.post(f"http://{server}/v1/completions", json=body) as response:
                response.raise_for_status()
                await response.read()


async def _tokenized(server: str, model: str, plan: Sequence[Conversation]) -> tuple[Question, ...]:
    """Ask a server which tokens the questions are."""
    asked: list[Question] = []
    async with aiohttp.ClientSession() as session:
        for each in plan:
            (turn,) = each.turns
            messages = [
                {"role": "system", "content": each.system},
                {"role": "user", "content": turn.question},
            ]
            body = {"model": model, "messages": messages}
            async with session.post(f"http://{server}/tokenize", json=body) as response:
                response.raise_for_status()
                tokens = (await response.json())["tokens"]
            asked.append(Question(turn.at, tuple(tokens), turn.tokens))
    return tuple(asked)
