"""What is wanted of a node beside work: by its owner, by the machine, and by the coordinator. Pure."""

from prime_protocol.messages import Command

STOP_MS = 15_000
"""How long a node that was told to stop tries to give back what it holds."""

NEVER_MS = 2**62


class Wishes:
    """One node's."""

    def __init__(self) -> None:
        self.held_for = ""
        """Why the owner, or the machine, wants no more work; empty where work is wanted."""
        self.is_draining = False
        """The owner wants what is in hand finished, and then an end."""
        self.is_ending = False
        """The owner wants an end now."""
        self.command = Command.NONE
        """The coordinator's word."""
        self.stop_ms = NEVER_MS
        """By when a node that has to stop does so, whatever is left."""

    def obey(self, command: Command, now_ms: int) -> Command:
        """What holds now: the coordinator's last word, but an owner's end stays."""
        self.command = Command.STOP if self.is_ending else command
        self.stop_ms = min(self.stop_ms, now_ms + STOP_MS) if self.command is Command.STOP else NEVER_MS
        return self.command

    @property
    def takes_work(self) -> bool:
        return self.command is Command.NONE and not self.is_draining and not self.held_for

    def find_end(self, now_ms: int, *, is_idle: bool, is_told: bool) -> str | None:
        """Why the process may end now, None where it may not. `is_told`: nothing is on its way to the log."""
        if self.stop_ms != NEVER_MS and (now_ms >= self.stop_ms or is_told):
            return "" if self.is_ending else "the coordinator asked for it"
        return "" if self.is_draining and is_idle and is_told else None
