"""`python -m prime_devnet`."""

import sys

from prime_devnet.cli import main

sys.exit(main())
