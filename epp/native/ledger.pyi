from epp.model.pods.ledger import Ledger as Ledger  # the kernel promises what its twin does
from epp.model.pods.ledger import survey as survey

OVERDUE_SECONDS: float
