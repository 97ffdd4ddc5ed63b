"""A store that outlives all replicas: sealed messages in a Redis or Valkey server, for a time."""

from collections.abc import AsyncIterable, Sequence
from typing import Final

from epp.adapters.replicas.redis_link import FAILURES, RedisLink
from epp.adapters.replicas.redis_server import RedisServer
from epp.adapters.replicas.sealing import Seal
from epp.errors import reason
from epp.protocol.replicas.messages import Rejected
from epp.system.logs import Log

_log = Log(__name__)

_KEPT_SECONDS: Final = 600
"""How long messages are kept: later, caches hold other blocks."""
_MAX_PARTS: Final = 16_384
_PATIENCE_SECONDS: Final = 30.0
"""How long reading all messages may take; callers have tighter limits."""


class RedisStore:
    """Keeps messages. `prefix` begins all keys of the pool."""

    def __init__(self, server: RedisServer, seal: Seal, prefix: bytes) -> None:
        self._server: Final = server
        self._seal: Final = seal
        self._key: Final = prefix + b"kept"
        self._failed = False
        self._written: Final = b"%b:%b" % (self._key, seal.sender.hex().encode())

    async def keep(self, parts: AsyncIterable[bytes]) -> None:
        """Replace the kept messages by these: by all of them, or not at all."""
        link = RedisLink(self._server)
        try:
            await link.open()
            await link.ask([(b"DEL", self._written)])
            async for part in parts:
                sealed = self._seal.seal(self._key, part)
                expires = b"EXPIRE", self._written, _KEPT_SECONDS
                await link.ask([(b"RPUSH", self._written, sealed), expires])
            await link.ask([(b"RENAME", self._written, self._key)])
            self._failed = False
        except FAILURES as error:
            if not self._failed:
                _log.warning("replicas.not_kept", server=str(self._server), problem=reason(error))
            self._failed = True
        finally:
            await link.close()

    async def kept(self) -> Sequence[bytes]:
        """Return the kept messages; none if one of them is not from a replica."""
        link = RedisLink(self._server)
        try:
            await link.open()
            (answer,) = await link.ask([(b"LRANGE", self._key, 0, _MAX_PARTS)], _PATIENCE_SECONDS)
            parts = answer if isinstance(answer, list) else []
            return [self._seal.open(self._key, each)[2] for each in parts]
        except FAILURES:  # logged where the streams are read
            return ()
        except Rejected as rejected:
            _log.warning(
                "replicas.kept_rejected", key=repr(self._key), reason=rejected.reason.value
            )
            return ()
        finally:
            await link.close()
