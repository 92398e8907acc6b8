"""Whose fault an error is: ours, or that of the party who sent us something.

There is no third class. A bug of ours is an AssertionError. It is not caught; the supervisor reports it.
"""


def explain_version(found: object, known: int) -> str:
    """What is wrong with a version that this program does not read."""
    is_newer = isinstance(found, int) and found > known
    return f"is {found!s:.20}, this program reads {known}" + (": upgrade prime-swarm" if is_newer else "")


class LocalError(Exception):
    """Something on this side cannot go on: a setting, a file, a missing tool. The text says what to do."""


class RemoteError(Exception):
    """The peer broke the protocol. Drop what it sent, keep the daemon.

    `field` is the path of the offending value (`manifest.shards[3].digest`), so that the peer's author can find it.
    """

    def __init__(self, field: str, problem: str, *, retry_after_ms: int = 0) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem
        self.retry_after_ms = retry_after_ms
        """When the same would pass a limit; 0 where time changes nothing."""
