"""gRPC's framing in the plainest way: the twin of `epp.adapters.extproc.http2.framing`."""


class PlainDeframer:
    def __init__(self, limit):
        self.limit = limit
        self.fault = 0
        self._held = b""

    @property
    def within(self):
        return bool(self._held)

    def feed(self, data):
        self._held += data
        found = []
        while not self.fault and len(self._held) >= 5:
            size = int.from_bytes(self._held[1:5], "big")
            if self._held[0]:
                self.fault = 12
            elif size > self.limit:
                self.fault = 8
            elif len(self._held) < 5 + size:
                break
            else:
                found.append(self._held[5 : 5 + size])
                self._held = self._held[5 + size :]
        return found
