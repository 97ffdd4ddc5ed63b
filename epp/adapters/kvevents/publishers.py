"""Addresses of KV event publishers, and settings of subscriptions to them."""

import msgspec

from epp.label_selector import LabelSelector
from epp.model.endpoint import Endpoint, is_number, target_of

PORT_LABEL = "warmpick.io/kv-events-port"
"""Label with an endpoint's KV event port; 0: it publishes nothing. Default: the settings' port."""

REPLAY_PORT_LABEL = "warmpick.io/kv-replay-port"
"""Label with an endpoint's replay port; 0: it has none. Default: the settings' port."""

PAGE_SECONDS = 30.0
"""How long the pages of an engine that publishes are waited for."""


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Ports, topics and limits of subscriptions.

    Ports are those of data-parallel rank 0; labels of an endpoint override them.
    """

    port: int = 5557
    """Where events are published (`PORT_LABEL`)."""
    replay_port: int | None = None
    """Where missed events are asked for (`REPLAY_PORT_LABEL`); None: nothing is replayed."""
    topic_prefix: str = "kv@"
    """What topics start with."""
    model: str = ""
    """The base model of topics that name none."""
    patience: float = 5.0
    """Seconds after which a publisher that is not connected is lost."""
    replay_timeout: float = 3.0
    """Seconds without a message after which a replay ends."""
    max_bytes: int = 1 << 20
    """The size of one message, at most."""
    central: str = ""
    """An address of ZMQ at which engines may publish; empty: there is none."""
    each: bool = True
    """Whether endpoints are subscribed to by themselves."""
    selector: LabelSelector | None = None
    """Which endpoints are subscribed to by themselves; None: all."""
    namespace: str = ""
    """The namespace of these endpoints; empty: any."""
    reconnect: tuple[float, float] = (0.1, 5.0)
    """Seconds between attempts to connect: the first interval, and the limit of its doubling."""

    def subscribes_to(self, endpoint: Endpoint) -> bool:
        """Return whether an endpoint is subscribed to by itself."""
        selected = self.selector is None or self.selector.selects(endpoint.labels)
        return self.each and selected and self.namespace in {"", endpoint.namespace}


class PublisherAddresses(msgspec.Struct, frozen=True):
    """ZMQ addresses of one publisher; `replay` is empty if it has no replay socket."""

    events: str
    replay: str

    @classmethod
    def of(cls, endpoint: Endpoint, settings: SubscriptionSettings) -> "PublisherAddresses | None":
        """Return an endpoint's addresses, by labels or settings.

        None: it publishes nothing, or is not subscribed to.
        """
        port = _port(endpoint, PORT_LABEL, settings.port)
        replay_port = _port(endpoint, REPLAY_PORT_LABEL, settings.replay_port or 0)
        if not port or not settings.subscribes_to(endpoint):
            return None
        # vLLM `ZmqEventPublisher.offset_endpoint_port`: each data-parallel rank adds its number.
        index = endpoint.engine_index
        return cls(
            f"tcp://{target_of(endpoint.address, port + index)}",
            f"tcp://{target_of(endpoint.address, replay_port + index)}" if replay_port else "",
        )


def _port(endpoint: Endpoint, label: str, default: int) -> int:
    text = endpoint.labels.get(label, "")
    return int(text) if is_number(text) and int(text) < 1 << 16 else default
