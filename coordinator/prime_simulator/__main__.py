"""`python -m prime_simulator`."""

import sys

from prime_simulator.cli import main

if __name__ == "__main__":
    sys.exit(main())
