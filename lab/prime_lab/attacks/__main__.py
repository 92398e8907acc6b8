"""`python -m prime_lab.attacks`: the same as `prime-coordinator attacks`."""

import sys

from prime_lab.attacks.cli import main

sys.exit(main())
