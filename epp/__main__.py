"""`python -m epp` is `epp`."""

import sys

from epp.cli.main import main

sys.exit(main())
