"""What can go wrong with a chain: it cannot be asked, or it says no."""

from prime_protocol.errors import LocalError


class ChainAway(LocalError):
    """The chain cannot be asked now. Whoever settles tries again later; nothing is lost."""


class NonceTaken(ChainAway):
    """Another program with the same key was quicker. What was sent can never count, so it can be sent again."""


class NotAllowed(LocalError):
    """Our own settings are against it."""

    name = ""


class ChainRefused(LocalError):
    """A contract refuses. `name` is its custom error, empty where it gave none that we know."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.name = name
