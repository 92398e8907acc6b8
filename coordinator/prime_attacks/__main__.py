"""`python -m prime_attacks`: the same as `prime-coordinator attacks`."""

import sys

from prime_attacks.cli import main

sys.exit(main())
