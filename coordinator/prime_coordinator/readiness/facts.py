"""What `prime-coordinator check` found out about the network and its runs. Data only."""

from dataclasses import dataclass

from prime_protocol.ledger.terms import RunTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicAddress:
    """The address by which others reach the coordinator."""

    url: str
    """Empty: no setting names it."""
    is_loopback: bool
    """The coordinator listens on this machine only."""
    has_tls: bool
    problem: str = ""
    """Why it did not answer from here; empty if it did, or was not asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """One run that is not closed."""

    name: str
    status: str
    terms: RunTerms
    latest_step: int
    """Newest checkpoint; -1 before the first."""
    published_ms: int | None
    """When it was published."""
    step_ms: int | None
    """Mean time of the newest steps; None before there are two."""
    pool_nano: int
    owners_registered: int
    """Owners with a validator in the run."""
    serving: int
    """Nodes and origins that announce weights of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFacts:
    """The network as its operator's machine sees it."""

    ticker: str
    is_devnet: bool
    is_evm: bool
    now_ms: int
    address: PublicAddress
    faucet_nano: int
    """What a new node gets; 0 without a faucet."""
    balance_nano: int
    """Of the coordinator's account, from which deposits in the log and funds of runs come."""
    deposited_nano: int
    randomness: str
    """Which chain, and who can predict it."""
    randomness_is_own: bool
    randomness_late_s: int
    disk_free_bytes: int
    nodes_online: int
    runs: tuple[RunFacts, ...]
