"""What holds for every test: Ctrl-C reaches the programs that are started, also where a shell in the background ran us.

Such a shell ignores SIGINT for its children, and they for theirs.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
