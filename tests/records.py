"""Records of exchanges as observers get them, of facts that a test chooses."""

from epp.model.request import RequestId
from epp.protocol.extproc.record import RequestRecord


def record_of(**facts):
    record = RequestRecord(RequestId("r"), 0.0)
    for name, fact in facts.items():
        assert hasattr(record, name)
        setattr(record, name, fact)
    return record
