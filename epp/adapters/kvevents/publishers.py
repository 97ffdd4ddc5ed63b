"""Where engines publish their KV events, and how they are listened to."""

import msgspec

from epp.model.endpoint import Endpoint, target_of

PORT_LABEL = "warmpick.io/kv-events-port"
"""Where an endpoint publishes, where that is not the port of the settings; 0: it does not."""

REPLAY_PORT_LABEL = "warmpick.io/kv-replay-port"
"""Where an endpoint sends batches again; 0: nowhere."""


class SubscriptionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where engines publish, and how they are listened to.

    To `port` and `replay_port` an endpoint's data-parallel rank is added; labels of the endpoint
    go first (`PORT_LABEL`, `REPLAY_PORT_LABEL`). `replay_port` None: nothing is sent again.
    Topics start with `topic_prefix`; `model` names the base model where topics do not. An engine
    that is not there for `patience` seconds is lost; one that has been silent for
    `replay_timeout` seconds sends nothing again. `max_bytes` is what one message may have.
    """

    port: int = 5557
    replay_port: int | None = None
    topic_prefix: str = "kv@"
    model: str = ""
    patience: float = 5.0
    replay_timeout: float = 3.0
    max_bytes: int = 64 << 20
    reconnect: tuple[float, float] = (0.1, 5.0)
    """Seconds between attempts to connect: the first, and the most after doubling."""


class PublisherAddresses(msgspec.Struct, frozen=True):
    """Where one endpoint publishes, as ZMQ addresses; `again` is empty where it has none."""

    events: str
    again: str

    @classmethod
    def of(cls, endpoint: Endpoint, settings: SubscriptionSettings) -> "PublisherAddresses | None":
        """Tell by an endpoint's labels, else by the settings; None where it publishes nothing."""
        port = _port(endpoint, PORT_LABEL, settings.port)
        again = _port(endpoint, REPLAY_PORT_LABEL, settings.replay_port or 0)
        if not port:
            return None
        rank = endpoint.rank or 0
        return cls(
            f"tcp://{target_of(endpoint.address, port + rank)}",
            f"tcp://{target_of(endpoint.address, again + rank)}" if again else "",
        )


def _port(endpoint: Endpoint, label: str, usual: int) -> int:
    text = endpoint.labels.get(label, "")
    return int(text) if text.isdecimal() and int(text) < 1 << 16 else usual
