from epp.model.pods.ledger import Ledger as Ledger  # the kernel promises what its twin does
from epp.model.pods.ledger import take_snapshot as take_snapshot

OVERDUE_SECONDS: float
