"""Which rules a log follows, from which time on, and how they change. Pure.

A log begins with the rules that its first entry names. The coordinator announces the next ones with `RulesChanged`, at
least the network's notice before they start, and one change at a time. What is in force at an entry depends on the
entry's time and on the entries before it alone, so everyone who folds the log switches at the same entry.

A program that does not know the announced rules keeps judging entries until they start. Then it stops: it cannot tell a
valid entry from an invalid one any more, so it accuses no one and says which release to install (`UnknownRules`).
"""

from dataclasses import dataclass

from prime_protocol import constants
from prime_protocol.constants import PROTOCOL_VERSION_MIN, RULES_NOTICE_MS, RULES_NOTICE_MS_MAX
from prime_protocol.errors import LocalError, RemoteError


class UnknownRules(LocalError):
    """The log follows rules that this program does not know. It says nothing about the log."""

    def __init__(self, *, rules: int, index: int, at_ms: int, release: str) -> None:
        wanted = f"version {release} or later" if release else "the newest version"
        super().__init__(
            f"this log follows rules {rules} from entry {index} on, and this program knows rules up to"
            f" {constants.PROTOCOL_VERSION}: upgrade prime-swarm to {wanted}"
        )
        self.rules = rules
        self.index = index
        """Of the first entry that this program cannot judge."""
        self.at_ms = at_ms
        """Time of that entry."""


@dataclass(frozen=True, slots=True)
class RulesPlan:
    """The rules of a log over time: those in force, and those announced last."""

    before: int = PROTOCOL_VERSION_MIN
    """In force until `from_ms`."""
    after: int = PROTOCOL_VERSION_MIN
    """In force from then on."""
    from_ms: int = 0
    release: str = ""
    """First release that knows them."""
    index: int = 0
    """Of the entry that announced them."""
    notice_ms: int = RULES_NOTICE_MS
    """Least time between the announcement of a change and its start."""

    def get_version(self, at_ms: int) -> int:
        """The rules for an entry of that time."""
        return self.after if at_ms >= self.from_ms else self.before

    def is_pending(self, at_ms: int) -> bool:
        return at_ms < self.from_ms

    def check_known(self, *, at_ms: int, index: int) -> int:
        """The rules for the entry with this time and number; UnknownRules if this program does not know them."""
        rules = self.get_version(at_ms)
        if rules > constants.PROTOCOL_VERSION:
            raise UnknownRules(rules=rules, index=index, at_ms=at_ms, release=self.release)
        return rules

    def announce(self, rules: int, *, from_ms: int, release: str, at_ms: int, index: int) -> "RulesPlan":
        """The plan after a `RulesChanged` entry of that time; RemoteError if it may not change the rules like this."""
        if self.is_pending(at_ms):
            raise RemoteError("rules", f"is {rules}, but the change to {self.after} of entry {self.index} is pending")
        if rules != self.after + 1:
            raise RemoteError("rules", f"is {rules}, the next version after {self.after} is {self.after + 1}")
        wait_ms = from_ms - at_ms
        if not self.notice_ms <= wait_ms <= RULES_NOTICE_MS_MAX:
            raise RemoteError(
                "from_ms", f"is {wait_ms} ms away, this network allows {self.notice_ms} to {RULES_NOTICE_MS_MAX}"
            )
        return RulesPlan(
            before=self.after, after=rules, from_ms=from_ms, release=release, index=index, notice_ms=self.notice_ms
        )


FIRST_RULES = RulesPlan()
"""Of a log without entries."""
