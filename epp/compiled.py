"""Which modules are compiled, and whether what was compiled is what the sources are.

One rule: a C extension lies beside its source, under the module's own name, and Python takes it
instead of the source. `setup.py` builds the extensions that `MODULES` lists and writes into
`RECORD` what it built them from. Where a file of these has changed since, or where the environment
says WARMPICK_NATIVE=off, no extension of this package is taken, and the sources run. They are
taken together or not at all because compiled modules call each other without a look-up.

The source is the contract. mypyc compiles it as it stands. It lays out the fields of a class by
itself, whether there are `__slots__` or not, and drops the keywords of a class, so that no such
module defines a `msgspec.Struct`. Cython compiles a `.pyx`, which promises the same as
the source; it lies beside it, or in the folder `native` of its package. Without an extension, what
has no source cannot be imported: the transport over nghttp2, in whose place grpcio serves.
docs/adr/0013-compiled.md says why.
"""

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import find_spec
from io import FileIO
from pathlib import Path
from types import ModuleType
from typing import Literal
from zlib import crc32

Compiler = Literal["mypyc", "cython"]

MODULES: dict[str, Compiler] = {
    "epp.adapters.extproc.driver": "mypyc",
    "epp.adapters.extproc.grpc_connection": "mypyc",
    "epp.adapters.extproc.http2.framing": "cython",
    "epp.adapters.extproc.http2.session": "cython",
    "epp.adapters.extproc.native": "mypyc",
    "epp.adapters.extproc.read_ahead": "mypyc",
    "epp.adapters.extproc.streams": "mypyc",
    "epp.adapters.extproc.turns": "mypyc",
    "epp.adapters.scrape.page_client": "mypyc",
    "epp.adapters.scrape.poll_turns": "mypyc",
    "epp.adapters.scrape.scraper": "mypyc",
    "epp.adapters.telemetry.cardinality": "mypyc",
    "epp.adapters.telemetry.decisions": "mypyc",
    "epp.adapters.telemetry.histogram": "mypyc",
    "epp.adapters.telemetry.metrics": "mypyc",
    "epp.adapters.telemetry.requests": "mypyc",
    "epp.app.director": "mypyc",
    "epp.app.observing.decision_ring": "mypyc",
    "epp.model.caches.block_pool.pool": "cython",
    "epp.model.caches.engine_blocks.block_set": "cython",
    "epp.model.caches.engine_blocks.blocks": "cython",
    "epp.model.caches.reported_blocks": "mypyc",
    "epp.model.candidate": "mypyc",
    "epp.model.candidates": "mypyc",
    "epp.model.decision": "mypyc",
    "epp.model.ends": "mypyc",
    "epp.model.fleet": "mypyc",
    "epp.model.learning.bounded": "mypyc",
    "epp.model.learning.decode": "mypyc",
    "epp.model.learning.fit": "mypyc",
    "epp.model.learning.mean": "mypyc",
    "epp.model.learning.output_lengths": "mypyc",
    "epp.model.learning.prefill": "mypyc",
    "epp.model.learning.slowness": "mypyc",
    "epp.model.learning.survival": "mypyc",
    "epp.model.learning.trust": "mypyc",
    "epp.model.learning.ttft_share": "mypyc",
    "epp.model.listeners": "mypyc",
    "epp.model.pods.current_load": "mypyc",
    "epp.model.pods.engine_scheduler": "mypyc",
    "epp.model.pods.growth": "mypyc",
    "epp.model.pods.idle_reports": "mypyc",
    "epp.model.pods.in_flight": "mypyc",
    "epp.model.pods.ledger": "mypyc",
    "epp.model.pods.outlier_detection": "mypyc",
    "epp.model.pods.outlier_state": "mypyc",
    "epp.model.pods.pace": "mypyc",
    "epp.model.pods.pod": "mypyc",
    "epp.model.pods.pods": "mypyc",
    "epp.model.pods.sequence": "mypyc",
    "epp.model.pods.unobserved": "mypyc",
    "epp.model.prefix_index.index": "cython",
    "epp.model.prompts.block_hasher": "mypyc",
    "epp.model.prompts.block_hashes": "cython",
    "epp.model.prompts.chain": "mypyc",
    "epp.model.prompts.generated": "mypyc",
    "epp.model.prompts.hashing": "cython",
    "epp.model.prompts.known_prefix_lengths": "cython",
    "epp.model.prompts.reader": "mypyc",
    "epp.model.prompts.text_lengths": "cython",
    "epp.model.prompts.token_estimator": "mypyc",
    "epp.model.prompts.token_offsets": "mypyc",
    "epp.model.quote": "mypyc",
    "epp.model.request": "mypyc",
    "epp.model.request_events": "mypyc",
    "epp.policy.choice": "mypyc",
    "epp.policy.flow.expected_wait": "mypyc",
    "epp.policy.flow.flow_control": "mypyc",
    "epp.policy.flow.held": "mypyc",
    "epp.policy.flow.line": "mypyc",
    "epp.policy.flow.memory_share": "mypyc",
    "epp.policy.flow.placement": "mypyc",
    "epp.policy.flow.rooms": "mypyc",
    "epp.policy.scheduler": "mypyc",
    "epp.protocol.bodies.apis": "mypyc",
    "epp.protocol.bodies.body": "mypyc",
    "epp.protocol.bodies.body_reader": "cython",
    "epp.protocol.bodies.coercion": "mypyc",
    "epp.protocol.bodies.object_scanner": "cython",
    "epp.protocol.bodies.parsed": "mypyc",
    "epp.protocol.bodies.usage": "mypyc",
    "epp.protocol.extproc.codec": "cython",
    "epp.protocol.extproc.director": "mypyc",
    "epp.protocol.extproc.exchange": "mypyc",
    "epp.protocol.extproc.headers": "mypyc",
    "epp.protocol.extproc.messages": "mypyc",
    "epp.protocol.extproc.names": "mypyc",
    "epp.protocol.extproc.observation": "mypyc",
    "epp.protocol.extproc.record": "mypyc",
    "epp.protocol.extproc.request": "mypyc",
    "epp.protocol.extproc.response": "mypyc",
    "epp.protocol.extproc.settings": "mypyc",
    "epp.protocol.extproc.step": "mypyc",
    "epp.protocol.metrics.metrics_reader": "mypyc",
    "epp.protocol.metrics.page": "mypyc",
    "epp.protocol.metrics.page_text": "mypyc",
    "epp.protocol.metrics.values": "mypyc",
    "epp.protocol.replicas.chains": "mypyc",
    "epp.protocol.replicas.fact_reader": "mypyc",
    "epp.protocol.replicas.fact_writer": "mypyc",
    "epp.protocol.replicas.peers": "mypyc",
    "epp.protocol.replicas.requests_of_peer": "mypyc",
    "epp.values": "mypyc",
}
"""What compiles each: mypyc the `.py`, all such modules into one library; Cython the `.pyx`."""

LIBRARIES = {"epp.adapters.extproc.http2.session": ("nghttp2",)}
"""The shared libraries that an extension links."""

RECORD = "compiled.txt"
"""What was built, in this folder: a line of checksum, module and path for each source."""

OFF = "turned off by WARMPICK_NATIVE=off"
NOT_BUILT = "not built"

_ROOT = Path(__file__).parent.parent


def path_of(module: str, suffix: str = ".py") -> str:
    """Return the path of a module's file, relative to the folder that holds `epp`."""
    return module.replace(".", "/") + suffix


def cython_source_of(root: Path, module: str) -> str:
    """Return the path of a module's `.pyx`: in `native/` of its package, else beside its source."""
    beside = Path(path_of(module, ".pyx"))
    native = beside.parent / "native" / beside.name
    return (native if (root / native).exists() else beside).as_posix()


def record_of(root: Path, module: str, paths: Iterable[str]) -> str:
    """Return the lines of `RECORD` for a module that is built from the files `paths`."""
    return "".join(f"{_checksum(root / path)} {module} {path}\n" for path in sorted(paths))


def _checksum(path: Path | str) -> str:
    # It is to notice edits only, at each start: a cryptographic digest takes ten times as long.
    with FileIO(path) as file:
        return f"{crc32(file.readall()):08x}"


def _fault() -> str:
    if os.environ.get("WARMPICK_NATIVE") == "off":
        return OFF
    try:
        record = (_ROOT / "epp" / RECORD).read_text(encoding="ascii")
    except OSError:
        return NOT_BUILT
    root = f"{_ROOT}/"
    for checksum, _, path in map(str.split, record.splitlines()):
        try:
            same = _checksum(root + path) == checksum
        except OSError:
            same = False
        if not same:
            return f"{path} has changed since it was compiled"
    return ""


class _Sources:
    """Finds the sources of this package's modules, never extensions (`MetaPathFinder`)."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the source of a module lies; None for modules of other packages.

        Raises `ModuleNotFoundError` for a compiled module without a source.
        """
        if not name.startswith("epp."):
            return None
        for folder in path or ():
            spec = FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES)).find_spec(name)
            if spec is not None and spec.loader is not None:
                return spec
        if name in MODULES:
            raise ModuleNotFoundError(f"{name} needs its extension: {FAULT}", name=name)
        return None


FAULT = _fault()
"""Why no extension is taken; empty if those that were built are."""
if FAULT:
    sys.meta_path.insert(0, _Sources)


def fault(module: str, *, load: bool = True) -> str:
    """Return why a module of `MODULES` is not compiled; empty if it is.

    A single extension can be missing, if one of its libraries was missing when it was built, or
    is missing now, which only an import shows. Without `load` other modules are not imported.
    """
    if FAULT:
        return FAULT
    spec = find_spec(module)
    if spec is None or not str(spec.origin).endswith(tuple(EXTENSION_SUFFIXES)):
        return NOT_BUILT
    if not load and module not in LIBRARIES:
        return ""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return str(error)
    return ""


def summary() -> str:
    """Return in one line how many modules are compiled, and which are not, and why."""
    if FAULT:
        return f"none: {FAULT}"
    faults = {module: why for module in MODULES if (why := fault(module, load=False))}
    parts = [f"{len(MODULES) - len(faults)} of {len(MODULES)} modules"]
    return "; ".join(parts + [f"not {module} ({why})" for module, why in faults.items()])
