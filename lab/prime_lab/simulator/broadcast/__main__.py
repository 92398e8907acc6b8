"""`python -m prime_lab.simulator.broadcast`."""

import sys

from prime_lab.simulator.broadcast.cli import main

if __name__ == "__main__":
    sys.exit(main())
