"""Public traces that tests read, where they are: in $WARMPICK_TRACES, or beside the checkout."""

import os
from pathlib import Path

import pytest

_FOLDER = Path(os.environ.get("WARMPICK_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
CONVERSATION = _FOLDER / "mooncake_conversation.jsonl.zst"
AGENTS = _FOLDER / "lmcache_agent_trace.tar.zst"
needs_traces = pytest.mark.skipif(
    not (CONVERSATION.exists() and AGENTS.exists()),
    reason=f"needs the public traces in {_FOLDER}",
)
