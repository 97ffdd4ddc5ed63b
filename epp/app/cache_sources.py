"""Builds what the picker knows caches by, as the configuration asks for it.

What asks for an extra that is not installed, or cannot be loaded, is left out and said so: the
picker then knows less, and goes on.
"""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import structlog

from epp.adapters.tokens.tokenizer import PromptTokenizer
from epp.app.tokenizer import build_tokenizer
from epp.config.file import Settings
from epp.config.producers import KvEventSettings, TokenSettings
from epp.errors import ConfigError
from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.events import Event
from epp.model.fleet import Fleet
from epp.model.prompts.block_hasher import TOKEN_BLOCK, BlockHasher

if TYPE_CHECKING:  # it needs an extra
    from epp.adapters.kvevents.listener import KvEvents

_log = structlog.get_logger(__name__)

_SECRET_BYTES = 32
_EVENTS_EXTRA = "pip install 'warmpick[events]'"


def fleet_of(settings: Settings, secret: bytes) -> Fleet:
    """Build an empty fleet; without a `secret` its block hashes are this process's own."""
    secret = secret or os.urandom(_SECRET_BYTES)
    hasher = BlockHasher(secret, settings.token_block or TOKEN_BLOCK)
    return Fleet(hasher, settings.capacity or UNKNOWN_CAPACITY)


def tokenizer_of(settings: TokenSettings | None) -> PromptTokenizer | None:
    """Build the tokenizer, if one is wanted; one that cannot be loaded is none."""
    try:
        return None if settings is None else build_tokenizer(settings)
    except ConfigError as error:
        _log.error("tokens.not_loaded", error=str(error), instead="prompts are routed as text")
        return None


def kv_events_of(
    wanted: KvEventSettings | None,
    tokenizer: PromptTokenizer | None,
    apply: Callable[[Event], None],
) -> "KvEvents | None":
    """Build what listens to engines, if that is wanted and of use.

    Events name blocks by token ids: beside prompts that are text, they would book all twice.
    """
    if wanted is None:
        return None
    if tokenizer is None:
        _log.error("kv_events.useless", reason="no token-producer makes tokens of prompts")
        return None
    try:
        from epp.adapters.kvevents.listener import KvEvents  # noqa: PLC0415 (an extra)
        from epp.adapters.kvevents.sources import (  # noqa: PLC0415
            KvEventSettings as Listening,
        )
    except ImportError as error:
        _log.error("kv_events.not_loaded", missing=error.name, remedy=_EVENTS_EXTRA)
        return None
    return KvEvents(
        apply,
        Listening(
            port=wanted.port,
            replay_port=wanted.replay_port,
            topic_prefix=wanted.topic_filter,
            model=wanted.model,
        ),
    )


def batches(kv_events: "KvEvents | None") -> dict[tuple[str, str], int]:
    """Count batches of KV events by endpoint and what became of them."""
    if kv_events is None:
        return {}
    return {
        (endpoint, outcome): times
        for endpoint, counts in kv_events.counts().items()
        for outcome, times in msgspec.structs.asdict(counts).items()
    }


def left_as_text(tokenizer: PromptTokenizer | None) -> dict[str, int]:
    """Count prompts that were to be tokenized and were not, by cause."""
    if tokenizer is None:
        return {}
    return {cause.name.lower(): times for cause, times in tokenizer.counts.items()}
