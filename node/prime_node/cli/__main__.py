"""`python -m prime_node.cli`: the command without its installed script."""

import sys

from prime_node.cli.main import main

sys.exit(main())
