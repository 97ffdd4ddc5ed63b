"""Builders of what the cache model learns from: fleet, tokenizer, KV events, other replicas.

A source that needs an extra which is not installed, or that cannot be loaded, is left out and
logged as an error: the picker then predicts from less, and serves.
"""

import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from epp.adapters.kube.kube_settings import KubeSettings
from epp.adapters.kvevents.publishers import SubscriptionSettings
from epp.adapters.scrape.client_tls import ClientTlsSettings, client_tls
from epp.adapters.telemetry import families
from epp.adapters.telemetry.series import FamilyText, expose
from epp.adapters.tokens.prompt_tokenizer import PromptTokenizer
from epp.app.options import ServeOptions
from epp.config.file import Settings
from epp.config.kv_events import KvEventsConfig
from epp.config.tokens import RenderEndpoint, TokenProducer
from epp.errors import ConfigError
from epp.label_selector import parse_label_selector
from epp.model.caches.choice import UNKNOWN_CAPACITY
from epp.model.endpoint import EndpointId
from epp.model.events import EndpointRemoved, EndpointUpserted, Event
from epp.model.fleet import Fleet
from epp.model.listeners import OnFault, reraise
from epp.model.pods.outlier_settings import OutlierSettings
from epp.model.prefix_index.index import BUDGET
from epp.model.prompts.block_hasher import BlockHasher
from epp.quantities import seconds
from epp.system.logs import Log

if TYPE_CHECKING:  # they need an extra, or take long to load
    from epp.adapters.kvevents.kv_event_listener import KvEventListener
    from epp.adapters.tokens.local.local_tokenizer import LocalLimits
    from epp.adapters.tokens.render.render_server import RenderSettings
    from epp.app.replicas.exchange import Replicas

_log = Log(__name__)

_SECRET_BYTES = 32
_TOKENS_EXTRA = "pip install 'warmpick[tokens]'"
_EVENTS_EXTRA = "pip install 'warmpick[events]'"


def build_fleet(
    settings: Settings,
    secret: bytes,
    eject_after: int,
    on_fault: OnFault = reraise,
    index_bytes: int = BUDGET,
) -> Fleet:
    """Return an empty fleet, which leaves endpoints out that failed `eject_after` times in a row.

    Without a `secret` its block hashes are random for each process. Its index takes at most about
    `index_bytes`.
    """
    secret = secret or os.urandom(_SECRET_BYTES)
    hasher = BlockHasher(secret, settings.token_block)
    outliers = OutlierSettings(consecutive_failures=eject_after)
    return Fleet(hasher, settings.capacity or UNKNOWN_CAPACITY, outliers, on_fault, index_bytes)


def build_tokenizer(settings: TokenProducer, fleet: Fleet | None = None) -> PromptTokenizer:
    """Return a tokenizer, which may have the endpoints of a fleet render.

    Raises `ConfigError`, which says what to do.
    """
    if settings.tokenizer:
        return _local_tokenizer(settings)
    return _render_tokenizer(settings, fleet)


def tokenizer_warning(settings: TokenProducer | None) -> str:
    """Return why the tokenizer cannot be loaded; empty if it can, or none is configured."""
    try:
        if settings is not None:
            build_tokenizer(settings)
    except ConfigError as error:
        return f"{error}; prompts would be routed as text"
    return ""


def tokenizer_or_none(
    settings: TokenProducer | None, fleet: Fleet | None = None
) -> PromptTokenizer | None:
    """Return the tokenizer; None if none is configured, or it cannot be loaded (logged)."""
    try:
        return None if settings is None else build_tokenizer(settings, fleet)
    except ConfigError as error:
        _log.error("tokens.not_loaded", error=str(error), instead="prompts are routed as text")
        return None


def _render_tokenizer(settings: TokenProducer, fleet: Fleet | None) -> PromptTokenizer:
    from epp.adapters.tokens.render.render_tokenizer import RenderTokenizer  # noqa: PLC0415 (slow)

    tokenizer = RenderTokenizer(render_settings(settings))
    discovery = settings.vllm.endpoint_discovery if settings.vllm else None
    if fleet is not None and discovery is not None:

        def follow(event: Event, _now: float, _guessed: bool) -> None:  # noqa: FBT001 (a `Listener`)
            if isinstance(event, EndpointUpserted) and (url := discovery.url_of(event.endpoint)):
                tokenizer.add(event.endpoint.id, url)
            elif isinstance(event, EndpointUpserted):
                tokenizer.remove(event.endpoint.id)
            elif isinstance(event, EndpointRemoved):
                tokenizer.remove(event.endpoint_id)

        fleet.subscribe((EndpointUpserted, EndpointRemoved), follow, "render endpoints")
    return tokenizer


def render_settings(producer: TokenProducer) -> "RenderSettings":
    """Return which server renders, and the limits of requests to it. Raises `ConfigError`."""
    from epp.adapters.tokens.render.render_server import RenderSettings  # noqa: PLC0415 (slow)

    endpoint = producer.vllm or RenderEndpoint()
    url = "" if endpoint.endpoint_discovery else endpoint.server
    return RenderSettings(
        url=url,
        model=producer.model_name,
        timeout=seconds(endpoint.timeout or "5s"),
        media_timeout=seconds(endpoint.mm_timeout or "30s"),
        attempt_timeout=endpoint.attempt_seconds,
        most_bytes=producer.max_bytes,
        prefill_only=endpoint.prefill_only,
        tls=client_tls(render_tls(endpoint)) if url.startswith("https:") else None,
    )


def render_tls(endpoint: RenderEndpoint) -> ClientTlsSettings:
    """Return which render servers to trust, and the certificate to show them."""
    return ClientTlsSettings(
        verify=not endpoint.insecure_skip_verify,
        authorities=endpoint.ca_cert_path,
        certificate=endpoint.client_cert_path,
        key=endpoint.client_key_path,
    )


def _local_tokenizer(settings: TokenProducer) -> PromptTokenizer:
    try:
        from epp.adapters.tokens.local.local_tokenizer import LocalTokenizer  # noqa: PLC0415
        from epp.adapters.tokens.local.model_folder import read_folder  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigError(f"`{error.name}` is missing: {_TOKENS_EXTRA}", "tokenizer") from error
    template = Path(settings.chat_template) if settings.chat_template else None
    folder = read_folder(Path(settings.tokenizer), template, settings.chat_template_kwargs)
    return LocalTokenizer(folder, local_limits(settings))


def local_limits(producer: TokenProducer) -> "LocalLimits":
    """Return the limits of work in process. Raises `ImportError` without the extra."""
    from epp.adapters.tokens.local.local_tokenizer import LocalLimits  # noqa: PLC0415 (an extra)

    return LocalLimits(
        most_bytes=producer.max_bytes,
        cache_bytes=producer.cache_bytes,
        patience=seconds(producer.patience),
    )


def kv_events_or_none(
    config: KvEventsConfig | None,
    base_model: str,
    tokenizer: PromptTokenizer | None,
    apply: Callable[[Event], None],
    ready: Callable[[EndpointId], Awaitable[None]],
) -> "KvEventListener | None":
    """Return the listener to engines; None if none is configured, or it has no use (logged).

    `base_model` names the model in events that name no adapter. `ready` waits for the pages of an
    endpoint: they say how its blocks are cut and which names of models are one. Events identify
    blocks by token ids, and prompts that are text have none of these, so a listener without a
    tokenizer has no use.
    """
    if config is None or not config.heard:
        return None
    if tokenizer is None:
        _log.error("kv_events.useless", reason="no token-producer makes tokens of prompts")
        return None
    try:
        from epp.adapters.kvevents.kv_event_listener import (  # noqa: PLC0415 (an extra)
            KvEventListener,
        )
    except ImportError as error:
        _log.error("kv_events.not_loaded", missing=error.name, remedy=_EVENTS_EXTRA)
        return None
    return KvEventListener(apply, subscription_settings(config, base_model), ready)


def replicas_or_none(
    options: ServeOptions,
    fleet: Fleet,
    clock: Callable[[], float],
    became_warm: Callable[[], None],
    on_fault: OnFault,
) -> "Replicas | None":
    """Return the exchange with other replicas; None if there are none. Raises `ConfigError`."""
    if options.replicas is None:
        return None
    from epp.app.replicas.exchange import Replicas  # noqa: PLC0415 (an extra)

    source = options.source
    return Replicas(
        fleet,
        options.replicas,
        options.hash_secret,
        pool=options.pool_name,
        namespace=source.namespace if isinstance(source, KubeSettings) else "default",
        bind_address=options.bind_address,
        clock=clock,
        became_warm=became_warm,
        on_fault=on_fault,
    )


def subscription_settings(config: KvEventsConfig, base_model: str) -> SubscriptionSettings:
    """Return where engines publish, and which of them are subscribed to."""
    pods = config.pod_discovery_config
    return SubscriptionSettings(
        port=pods.socket_port,
        replay_port=pods.replay_socket_port if pods.replay_socket_port > 0 else None,
        topic_prefix=config.topic_filter,
        model=base_model,
        central=config.zmq_endpoint,
        each=config.discover_pods,
        selector=parse_label_selector(pods.pod_label_selector) if pods.pod_label_selector else None,
        namespace=pods.pod_namespace,
    )


def untokenized_prompts(tokenizer: PromptTokenizer) -> Iterator[FamilyText]:
    """Yield the family of requests that stayed text although tokens were wanted."""
    causes = [((cause.name.lower(),), times) for cause, times in tokenizer.counts.items()]
    yield from expose(families.TEXT_INSTEAD, causes)
