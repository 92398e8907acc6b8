"""`python -m prime_lab.simulator`."""

import sys

from prime_lab.simulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
