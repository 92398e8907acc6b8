"""`python -m prime_lab.devnet`."""

import sys

from prime_lab.devnet.cli import main

sys.exit(main())
