"""`python -m prime_coordinator.cli`: the command without its installed script."""

import sys

from prime_coordinator.cli.main import main

sys.exit(main())
