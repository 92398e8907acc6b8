"""Who wants the node to hold, drain or stop, and when it may end. Pure."""

from prime_protocol.wire.messages import NodeCommand

STOP_MS = 15_000
"""How long a node that was told to stop tries to return its leases."""

NEVER_MS = 2**62


class ControlState:
    """Who wants the node to hold, drain or stop: its owner, its machine, or the coordinator."""

    def __init__(self) -> None:
        self.hold_reason = ""
        """Why the owner or the machine wants no more work; empty where it does."""
        self.is_draining = False
        """The owner wants the current jobs finished, then a stop."""
        self.is_stopping = False
        """The owner wants a stop now."""
        self.command = NodeCommand.NONE
        """The coordinator's last command."""
        self.stop_ms = NEVER_MS
        """When a node that was told to stop does so, whatever is left to send."""

    def apply_command(self, command: NodeCommand, now_ms: int) -> NodeCommand:
        """The command in force: the coordinator's last one, unless the owner has asked for a stop."""
        self.command = NodeCommand.STOP if self.is_stopping else command
        self.stop_ms = min(self.stop_ms, now_ms + STOP_MS) if self.command is NodeCommand.STOP else NEVER_MS
        return self.command

    @property
    def accepts_work(self) -> bool:
        return self.command is NodeCommand.NONE and not self.is_draining and not self.hold_reason

    @property
    def accepts_audits(self) -> bool:
        """A node that the coordinator drains or suspends still owes the verdicts that it was drawn for."""
        return self.command is not NodeCommand.STOP and not self.is_draining and not self.hold_reason

    def find_stop_reason(self, now_ms: int, *, is_idle: bool, is_outbox_empty: bool) -> str | None:
        """Why the process may end now; None: it may not yet. Empty: its owner asked for it."""
        if self.stop_ms != NEVER_MS and (now_ms >= self.stop_ms or is_outbox_empty):
            return "" if self.is_stopping else "the coordinator asked for it"
        return "" if self.is_draining and is_idle and is_outbox_empty else None
