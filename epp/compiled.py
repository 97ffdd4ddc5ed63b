"""The modules that every request passes, compiled as they stand; and whether they stand so still.

`setup.py` makes C extensions of them (mypyc) and writes down what their sources were. Python takes
an extension before a source. They call each other without looking, so they are taken together or
not at all: where one source has changed since, all are run from their sources. mypyc forgets what
a `msgspec.Struct` is told with its bases, so that none of them may define one.

With WARMPICK_NATIVE=off in the environment they are, too.
"""

import os
import sys
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

MODULES = (
    "epp.adapters.telemetry.cardinality",
    "epp.adapters.telemetry.histogram",
    "epp.adapters.telemetry.metrics",
    "epp.adapters.telemetry.requests",
    "epp.app.director",
    "epp.model.candidates",
    "epp.model.fleet",
    "epp.model.learning.bounded",
    "epp.model.learning.output_lengths",
    "epp.model.learning.prefill",
    "epp.model.learning.trust",
    "epp.model.pods.engine_scheduler",
    "epp.model.pods.in_flight",
    "epp.model.pods.pod",
    "epp.model.pods.pods",
    "epp.model.pods.sequence",
    "epp.model.prompts.block_hasher",
    "epp.model.prompts.chain",
    "epp.model.prompts.generated",
    "epp.model.prompts.reader",
    "epp.model.prompts.token_estimator",
    "epp.model.prompts.token_offsets",
    "epp.model.quote",
    "epp.policy.choice",
    "epp.policy.scheduler",
    "epp.protocol.extproc.exchange",
    "epp.protocol.extproc.record",
    "epp.protocol.extproc.request",
    "epp.protocol.extproc.response",
    "epp.protocol.openai.body",
)
RECORD = "compiled.txt"
"""What the sources were that were compiled, in this folder: a line of digest and path for each."""

_HOME = Path(__file__).parent


def path_of(module: str) -> str:
    """Return where a module's source lies, from the folder that holds `epp`."""
    return f"{module.replace('.', '/')}.py"


def record(root: Path, modules: Iterable[str] = MODULES) -> str:
    """Write down what sources under `root` are."""
    lines = []
    for module in modules:
        digest = blake2b((root / path_of(module)).read_bytes(), digest_size=16).hexdigest()
        lines.append(f"{digest} {path_of(module)}\n")
    return "".join(lines)


def _fault() -> str:
    if os.environ.get("WARMPICK_NATIVE") == "off":
        return "turned off by WARMPICK_NATIVE=off"
    try:
        built = (_HOME / RECORD).read_text(encoding="ascii").splitlines()
    except OSError:
        return "not built"
    changed = set(record(_HOME.parent).splitlines()).difference(built)
    if changed:
        return f"{min(line.split()[1] for line in changed)} has changed since they were built"
    return ""


class _Sources:
    """Finds the modules' sources, where their extensions lie beside them (`MetaPathFinder`)."""

    @staticmethod
    def find_spec(
        name: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Say where a module is loaded from; None for others."""
        if name not in MODULES:
            return None
        return spec_from_file_location(name, _HOME.parent / path_of(name))


FAULT = _fault()
"""Why the sources are run; empty where the compiled modules are."""
if FAULT:
    sys.meta_path.insert(0, _Sources)
