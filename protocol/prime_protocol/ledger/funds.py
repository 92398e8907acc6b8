"""Where the value is: balances, stakes, unbonding stake, escrow, run pools, and what was burned.

Value only moves. `deposit` is the one way in, `withdraw` and `hand_over` are the ways out, so `held_nano()` always
equals what came in minus what went out and was burned. Every method checks first and changes nothing when it refuses.
"""

from collections import Counter
from dataclasses import dataclass, field

from prime_protocol.errors import RemoteError
from prime_protocol.wire.ids import Digest, NodeId, RunId

StakeKey = tuple[NodeId, NodeId]
"""Owner and node: whose stake, behind which key."""


@dataclass(frozen=True, slots=True)
class Unbonding:
    """Stake on its way back."""

    amount_nano: int
    matures_at_ms: int


@dataclass(frozen=True, slots=True)
class Escrow:
    """Stake held while a slash is decided, and the bond of an appeal against it."""

    position: StakeKey
    amount_nano: int
    bond_nano: int = 0


@dataclass(slots=True)
class Funds:
    """All value the network knows of."""

    balances: Counter[NodeId] = field(default_factory=Counter)
    stakes: Counter[StakeKey] = field(default_factory=Counter)
    unbonding: dict[StakeKey, tuple[Unbonding, ...]] = field(default_factory=dict)
    escrow: dict[Digest, Escrow] = field(default_factory=dict)
    finding_bonds: dict[Digest, tuple[NodeId, int]] = field(default_factory=dict)
    """Of open findings, by submission: the finder and its bond."""
    pools: Counter[RunId] = field(default_factory=Counter)
    deposited_nano: int = 0
    withdrawn_nano: int = 0
    burned_nano: int = 0

    def total_nano(self) -> int:
        """Everything inside, counted one by one."""
        unbonding = sum(part.amount_nano for parts in self.unbonding.values() for part in parts)
        escrow = sum(held.amount_nano + held.bond_nano for held in self.escrow.values())
        open_accounts = sum(self.balances.values()) + sum(self.stakes.values()) + sum(self.pools.values())
        bonds = sum(amount_nano for _, amount_nano in self.finding_bonds.values())
        return open_accounts + unbonding + escrow + bonds

    def is_conserved(self) -> bool:
        """Whether value was neither made nor lost."""
        return self.total_nano() == self.deposited_nano - self.withdrawn_nano - self.burned_nano

    def deposit(self, account: NodeId, amount_nano: int) -> None:
        self.balances[account] += amount_nano
        self.deposited_nano += amount_nano

    def withdraw(self, account: NodeId, amount_nano: int) -> None:
        self._spend(account, amount_nano)
        self.withdrawn_nano += amount_nano

    def fund(self, run: RunId, account: NodeId, amount_nano: int) -> None:
        self._spend(account, amount_nano)
        self.pools[run] += amount_nano

    def pay(self, run: RunId, account: NodeId, amount_nano: int) -> None:
        assert self.pools[run] >= amount_nano
        self.pools[run] -= amount_nano
        self.balances[account] += amount_nano

    def stake(self, position: StakeKey, amount_nano: int) -> None:
        self._spend(position[0], amount_nano)
        self.stakes[position] += amount_nano

    def unbond(self, position: StakeKey, amount_nano: int, *, matures_at_ms: int, parts_max: int) -> None:
        if not 0 < amount_nano <= self.stakes[position]:
            raise RemoteError("amount_nano", f"is {amount_nano}, the stake is {self.stakes[position]}")
        parts = self.unbonding.get(position, ())
        if len(parts) >= parts_max:
            raise RemoteError("node", f"has {parts_max} unbondings open; release what has matured first")
        self.stakes[position] -= amount_nano
        self.unbonding[position] = (*parts, Unbonding(amount_nano, matures_at_ms))

    def release(self, position: StakeKey, now_ms: int) -> None:
        parts = self.unbonding.get(position, ())
        ripe = sum(part.amount_nano for part in parts if part.matures_at_ms <= now_ms)
        if not ripe:
            raise RemoteError("node", "has no unbonding that has matured")
        self._set_unbonding(position, tuple(part for part in parts if part.matures_at_ms > now_ms))
        self.balances[position[0]] += ripe

    def slashable_nano(self, position: StakeKey) -> int:
        """Stake and everything still unbonding, matured or not: asking it back does not outrun a slash."""
        return self.stakes[position] + sum(part.amount_nano for part in self.unbonding.get(position, ()))

    def move_to_escrow(self, slash: Digest, position: StakeKey, amount_nano: int) -> None:
        assert slash not in self.escrow
        self._take_stake(position, amount_nano)
        self.escrow[slash] = Escrow(position, amount_nano)

    def forfeit_stake(self, position: StakeKey, amount_nano: int, *, pool: RunId | None) -> None:
        """Take stake for good: into a run's pool, or burned where there is none."""
        self._take_stake(position, amount_nano)
        if pool is None:
            self.burned_nano += amount_nano
        else:
            self.pools[pool] += amount_nano

    def _take_stake(self, position: StakeKey, amount_nano: int) -> None:
        """From the stake first, then from what is unbonding, oldest first."""
        assert amount_nano <= self.slashable_nano(position)
        from_stake = min(amount_nano, self.stakes[position])
        self.stakes[position] -= from_stake
        missing, kept = amount_nano - from_stake, []
        for part in self.unbonding.get(position, ()):
            taken = min(missing, part.amount_nano)
            missing -= taken
            if taken < part.amount_nano:
                kept.append(Unbonding(part.amount_nano - taken, part.matures_at_ms))
        self._set_unbonding(position, tuple(kept))

    def post_bond(self, slash: Digest, amount_nano: int) -> None:
        """From the owner's balance, or else from the stake that is left.

        An owner without either may still appeal: what it has is in escrow already.
        """
        held = self.escrow[slash]
        assert held.bond_nano == 0
        owner = held.position[0]
        if self.balances[owner] >= amount_nano:
            self._spend(owner, amount_nano)
            self.escrow[slash] = Escrow(held.position, held.amount_nano, amount_nano)
            return
        amount_nano = min(amount_nano, self.slashable_nano(held.position))
        self._take_stake(held.position, amount_nano)
        self.escrow[slash] = Escrow(held.position, held.amount_nano + amount_nano)

    def refund(self, slash: Digest) -> None:
        """Stake back behind the node, bond back to the owner."""
        held = self.escrow.pop(slash)
        self.stakes[held.position] += held.amount_nano
        self.balances[held.position[0]] += held.bond_nano

    def burn(self, slash: Digest) -> None:
        held = self.escrow.pop(slash)
        self.burned_nano += held.amount_nano + held.bond_nano

    def pool(self, slash: Digest, run: RunId) -> int:
        """What has come into the pool."""
        held = self.escrow.pop(slash)
        self.pools[run] += held.amount_nano + held.bond_nano
        return held.amount_nano + held.bond_nano

    def transfer_stake_to_court(self, position: StakeKey, amount_nano: int) -> None:
        """The same for stake that is not in escrow here."""
        self._take_stake(position, amount_nano)
        self.withdrawn_nano += amount_nano

    def transfer_to_court(self, slash: Digest) -> None:
        """To the court on the chain, which has the stake itself."""
        held = self.escrow.pop(slash)
        self.withdrawn_nano += held.amount_nano + held.bond_nano

    def post_finding_bond(self, submission: Digest, account: NodeId, amount_nano: int) -> None:
        assert submission not in self.finding_bonds
        self._spend(account, amount_nano)
        self.finding_bonds[submission] = (account, amount_nano)

    def refund_finding_bond(self, submission: Digest) -> None:
        """Bonds of zero are not kept."""
        account, amount_nano = self.finding_bonds.pop(submission, (None, 0))
        if account is not None:
            self.balances[account] += amount_nano

    def burn_finding_bond(self, submission: Digest) -> None:
        self.burned_nano += self.finding_bonds.pop(submission, (None, 0))[1]

    def pool_finding_bond(self, submission: Digest, run: RunId) -> int:
        """What has come into the pool."""
        amount_nano = self.finding_bonds.pop(submission, (None, 0))[1]
        self.pools[run] += amount_nano
        return amount_nano

    def pay_bounty(self, slash: Digest, account: NodeId | None, amount_nano: int) -> None:
        """Out of the escrowed stake to the owner of the finder. None: a court on a chain pays it."""
        held = self.escrow[slash]
        assert amount_nano <= held.amount_nano
        self.escrow[slash] = Escrow(held.position, held.amount_nano - amount_nano, held.bond_nano)
        if account is None:
            self.withdrawn_nano += amount_nano
        else:
            self.balances[account] += amount_nano

    def _spend(self, account: NodeId, amount_nano: int) -> None:
        if not 0 < amount_nano <= self.balances[account]:
            raise RemoteError("amount_nano", f"is {amount_nano}, the balance is {self.balances[account]}")
        self.balances[account] -= amount_nano

    def _set_unbonding(self, position: StakeKey, parts: tuple[Unbonding, ...]) -> None:
        self.unbonding.pop(position, None)
        if parts:
            self.unbonding[position] = parts
