"""The zygote: an interpreter with the libraries of one kind of job already loaded, which forks a keeper per request.

Importing sympy or reasoning-gym takes seconds, a fork milliseconds. The zygote itself never reads a request: what one
job brought is not in the memory that the next one inherits.
"""

import json
import os
import signal
import socket
import sys
from typing import Any

from prime_runtime.jail.filesystem import SYSTEM_LIBRARIES
from prime_runtime.jail.keeper import Job, Pipes, keep, run_program

READY = b"ready"


def main() -> int:
    """Serve until the daemon closes the socket, which is descriptor 0."""
    setup: dict[str, Any] = json.loads(sys.argv[1])
    control = socket.socket(fileno=0)
    # The package's own folder was only needed to get here.
    sys.path[:] = [path for path in sys.path if os.path.exists(path) and path != setup["package"]] + setup["path"]
    exec(compile(setup["prepare"], "prepare.py", "exec"), {"__name__": "prepare"})
    visible = (*SYSTEM_LIBRARIES, *sys.path, os.path.join(sys.base_prefix, "lib"))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(READY)
    try:
        serve(control, visible)
        return 0
    except Job as job:
        source = job.source
    return run_program(source)


def serve(control: socket.socket, visible: tuple[str, ...]) -> None:
    """A keeper per request. In the keeper's descendants this only ever ends by a Job."""
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1, len(Pipes._fields))
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            keep(Pipes(*fds), visible)
        for fd in fds:
            os.close(fd)
