"""`python -m prime_simulator.broadcast`."""

import sys

from prime_simulator.broadcast.cli import main

if __name__ == "__main__":
    sys.exit(main())
