"""`python -m epp` is `epp`."""

import sys

from epp.cli import main

sys.exit(main())
