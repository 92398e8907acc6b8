"""What the contracts should do, written a second time, in Python: all their state for one run, and what changes it.

An operation either raises No with the name of the contract's error and has changed nothing, or changes the state. The
order of refusals is the contracts'. Signatures and proofs are not here: the scene makes true ones.
"""

from collections import Counter
from dataclasses import dataclass, field

from prime_protocol.wire.ids import Digest
from support.contracts.evm import DAY_S, TERMS

BURNED = "burned"
OPEN, APPEALED, EXECUTED, REFUNDED = 1, 2, 3, 4
UNBONDINGS_MAX = 16
ABANDONED_DELAYS = 4
DOUBLINGS_MAX = 16
T = {name: int(value) for name, value in TERMS.items()}


class No(Exception):
    """Refused, with the error's name."""


@dataclass
class Position:
    owner: str | None = None
    bound_at: int = 0
    stake: int = 0
    unbonding: list[tuple[int, int]] = field(default_factory=list)
    """Amount and when it matures, oldest first."""
    escrow: int = 0

    @property
    def slashable(self) -> int:
        return self.stake + sum(amount for amount, _ in self.unbonding)


@dataclass
class Slash:
    node: str
    status: int
    appeal_until: int
    anchored_at: int
    judges: list[str]
    appellant: str | None = None
    refuted: int | None = None
    """Outcome of the verdict that a penalty is for; None of a worker's slash."""
    judge_until: int = 0


@dataclass
class Promise:
    total: int
    matures_at: int
    head_size: int
    amounts: dict[str, int]
    voids: int = 0

    @property
    def statement(self) -> tuple[int, tuple[int, ...]]:
        """What challenges are about."""
        return self.head_size, tuple(self.amounts.values())


@dataclass
class Model:
    """Accounts are named; the vault, the court and the pool are accounts too."""

    now: int
    delay: int
    created_at: int
    balances: Counter[str] = field(default_factory=Counter)
    positions: dict[str, Position] = field(default_factory=dict)
    nonces: Counter[str] = field(default_factory=Counter)
    escrow: dict[Digest, tuple[str, int]] = field(default_factory=dict)
    slashes: dict[Digest, Slash] = field(default_factory=dict)
    taken: Counter[int] = field(default_factory=Counter)
    bounties: Counter[str] = field(default_factory=Counter)
    status: str = "active"
    closed_at: int = 0
    frozen_at: int = 0
    funded: Counter[str] = field(default_factory=Counter)
    claimed: Counter[str] = field(default_factory=Counter)
    promises: list[Promise] = field(default_factory=list)
    void: dict[int, Promise] = field(default_factory=dict)
    """By number, until another root takes the number."""
    votes: dict[tuple[int, tuple[int, ...]], set[str]] = field(default_factory=dict)
    """By statement: the owners against it."""
    promised_at: int = 0
    forfeited: int = 0
    abandoned: bool = False

    # --- StakeVault ---

    def position(self, node: str) -> Position:
        return self.positions.setdefault(node, Position())

    def bind(self, owner: str, node: str) -> None:
        self._bind(owner, node)
        self.nonces[node] += 1

    def _bind(self, owner: str, node: str) -> None:
        position = self.position(node)
        self.demand(not position.slashable and not position.escrow, "NodeTaken")
        position.owner, position.bound_at = owner, self.now

    def deposit(self, by: str, node: str, amount: int) -> None:
        self.demand(amount > 0, "AmountMissing")
        position = self.position(node)
        if by == node and position.owner != node:
            self._bind(node, node)
        self.owned(by, node)
        position.stake += amount
        self.move(by, "vault", amount)

    def unbond(self, by: str, node: str, amount: int) -> None:
        position = self.owned(by, node)
        self.demand(amount > 0, "AmountMissing")
        self.demand(amount <= position.stake, "StakeTooSmall")
        self.demand(len(position.unbonding) < UNBONDINGS_MAX, "TooManyUnbondings")
        position.stake -= amount
        position.unbonding.append((amount, self.now + self.delay))

    def withdraw(self, by: str, node: str) -> None:
        position = self.owned(by, node)
        ripe = sum(amount for amount, matures_at in position.unbonding if matures_at <= self.now)
        self.demand(ripe > 0, "NothingMatured")
        position.unbonding = [part for part in position.unbonding if part[1] > self.now]
        self.move("vault", by, ripe)

    def owned(self, by: str, node: str) -> Position:
        position = self.position(node)
        self.demand(position.owner is not None, "NodeNotBound")
        self.demand(position.owner == by, "NotOwner")
        return position

    # --- Court ---

    def propose(self, name: Digest, node: str, judges: list[str], anchored_at: int) -> None:
        self.demand(name not in self.slashes, "SlashExists")
        self.demand(self.status != "paused", "RunNotActive")
        self.demand(not self.frozen_at, "RunFrozen")
        self.demand(bool(judges), "EvidenceUnsigned")
        self.check_judges(node, judges, anchored_at)
        owners = [str(self.position(judge).owner) for judge in judges]
        self.open(name, Slash(node, OPEN, 0, anchored_at, judges + owners), T["slashAmount"])

    def propose_penalty(self, name: Digest, node: str, refuted: int, anchored_at: int, *, is_logged: bool) -> None:
        self.demand(name not in self.slashes, "SlashExists")
        self.demand(self.status != "paused", "RunNotActive")
        self.demand(not self.frozen_at, "RunFrozen")
        self.demand(is_logged, "NotInLeaf")
        self.open(name, Slash(node, OPEN, 0, anchored_at, [], refuted=refuted), T["validatorSlash"])

    def open(self, name: Digest, slash: Slash, amount_max: int) -> None:
        position = self.position(slash.node)
        amount = min(amount_max, position.slashable)
        self.demand(amount > 0, "NothingToSlash")
        self.demand(self.now <= slash.anchored_at + T["slashWindow"], "SlashTooLate")
        day = self.now // DAY_S
        self.demand(self.taken[day] + amount <= T["slashPerDay"], "DayLimit")
        self.taken[day] += amount
        self.seize(position, amount)
        self.escrow[name] = (slash.node, amount)
        slash.appeal_until = self.now + T["appealWindow"]
        slash.judge_until = slash.appeal_until + T["judgementWindow"] + T["slashWindow"]
        self.slashes[name] = slash

    def seize(self, position: Position, amount: int) -> None:
        """From the stake, then from what is unbonding, oldest first."""
        missing = amount - min(amount, position.stake)
        position.stake -= amount - missing
        position.escrow += amount
        kept = []
        for held, matures_at in position.unbonding:
            taken = min(missing, held)
            missing -= taken
            if held > taken:
                kept.append((held - taken, matures_at))
        position.unbonding = kept

    def check_judges(self, node: str, judges: list[str], anchored_at: int) -> None:
        self.demand(len(judges) >= T["quorum"], "TooFewVerdicts")
        seen = {self.position(node).owner}
        for judge in judges:
            position = self.position(judge)
            self.demand(position.slashable >= T["stakeMin"], "JudgeStakeTooSmall")
            self.demand(position.bound_at <= anchored_at, "JudgeTooNew")
            self.demand(position.owner not in seen, "OwnerTwice")
            seen.add(position.owner)

    def appeal(self, by: str, name: Digest) -> None:
        slash = self.expect(name, OPEN)
        self.demand(by in (slash.node, self.position(slash.node).owner), "NotAccused")
        self.demand(self.now < slash.appeal_until, "AppealTooLate")
        self.move(by, "court", T["appealBond"])
        slash.status, slash.appellant, slash.judge_until = APPEALED, by, self.now + T["judgementWindow"]

    def judge(self, name: Digest, judges: list[str], anchored_at: int, *, is_hard: bool) -> None:
        slash = self.expect(name, APPEALED)
        self.demand(self.now < slash.judge_until, "JudgementTooLate")
        self.demand(slash.refuted is None, "JudgesDiffer")
        self.demand(not self.frozen_at, "RunFrozen")
        self.check_judges(slash.node, judges, anchored_at)
        speakers = {*judges, *(self.position(judge).owner for judge in judges)}
        self.demand(speakers.isdisjoint(slash.judges), "JudgeAskedBefore")
        if is_hard:
            self._execute(name)
        else:
            self._refund(name)

    def judge_penalty(self, name: Digest, judges: list[str], outcome: int) -> None:
        slash = self.expect(name, APPEALED)
        self.demand(self.now < slash.judge_until, "JudgementTooLate")
        self.demand(not self.frozen_at, "RunFrozen")
        self.demand({outcome, slash.refuted} == {0, 2}, "NotRefuted")
        self.check_judges(slash.node, judges, slash.anchored_at)
        self._execute(name)

    def execute_penalty(self, name: Digest) -> None:
        slash = self.expect(name, OPEN)
        self.demand(slash.refuted is not None, "NotPenalty")
        self.demand(self.now >= slash.appeal_until, "AppealWindowOpen")
        self.demand(self.now < slash.judge_until, "JudgementTooLate")
        self.demand(not self.frozen_at, "RunFrozen")
        self._execute(name)

    def claim_bounty(self, account: str) -> int:
        amount = self.bounties.pop(account, 0)
        self.demand(amount > 0, "NothingToClaim")
        self.move("court", account, amount)
        return amount

    def execute(self, name: Digest, *, is_logged: bool, bounty_to: str | None = None) -> None:
        slash = self.expect(name, OPEN)
        self.demand(slash.refuted is None, "NotSlash")
        self.demand(self.now >= slash.appeal_until, "AppealWindowOpen")
        self.demand(self.now < slash.judge_until, "JudgementTooLate")
        self.demand(not self.frozen_at, "RunFrozen")
        self.demand(is_logged, "NotInLeaf")
        self._execute(name, bounty_to)

    def overturn(self, name: Digest, *, is_logged: bool) -> None:
        self.demand(self.expect(name, OPEN).refuted is None, "NotSlash")
        self.demand(not self.frozen_at, "RunFrozen")
        self.demand(is_logged, "NotInLeaf")
        self._refund(name)

    def refund(self, name: Digest) -> None:
        slash = self.slashes.get(name)
        self.demand(slash is not None and slash.status in (OPEN, APPEALED), "WrongStatus")
        assert slash is not None
        self.demand(bool(self.frozen_at) or self.now >= slash.judge_until, "JudgementWindowOpen")
        self._refund(name)

    def _execute(self, name: Digest, bounty_to: str | None = None) -> None:
        slash, (node, amount) = self.slashes[name], self.escrow.pop(name)
        bond = T["appealBond"] if slash.status == APPEALED else 0
        to = BURNED if self.is_over else "pool"
        self.position(node).escrow -= amount
        slash.status = EXECUTED
        bounty = amount * T["bountyShare"] // 10_000 if bounty_to else 0
        self.bounties[bounty_to or ""] += bounty
        self.move("vault", "court", bounty)
        self.move("vault", to, amount - bounty)
        self.move("court", to, bond)
        if to == "pool":
            self.forfeited += amount - bounty + bond

    def _refund(self, name: Digest) -> None:
        slash, (node, amount) = self.slashes[name], self.escrow.pop(name)
        position = self.position(node)
        position.escrow -= amount
        position.stake += amount
        if slash.status == APPEALED:
            assert slash.appellant is not None
            self.move("court", slash.appellant, T["appealBond"])
        slash.status = REFUNDED

    def expect(self, name: Digest, status: int) -> Slash:
        slash = self.slashes.get(name)
        self.demand(slash is not None and slash.status == status, "WrongStatus")
        assert slash is not None
        return slash

    # --- RewardPool ---

    @property
    def is_over(self) -> bool:
        is_closed = self.status == "closed" and self.now >= self.closed_at + self.delay
        return is_closed or self.abandoned or self.frozen_at != 0

    @property
    def is_abandoned(self) -> bool:
        matured = [each.matures_at for each in self.promises if each.matures_at <= self.now]
        return self.now >= max([self.created_at, *matured]) + ABANDONED_DELAYS * self.delay

    @property
    def promised(self) -> int:
        return self.promises[-1].total if self.promises else 0

    def matured(self, at: int) -> int:
        return max((each.total for each in self.promises if each.matures_at <= at), default=0)

    @property
    def valid_promised(self) -> int:
        return self.matured(self.frozen_at) if self.frozen_at else self.promised

    def fund(self, by: str, amount: int) -> None:
        self.demand(amount > 0, "AmountMissing")
        self.demand(not self.is_over, "RunIsOver")
        self.funded[by] += amount
        self.move(by, "pool", amount)

    def post(self, by: str, epoch: int, head_size: int, amounts: dict[str, int]) -> None:
        total = sum(amounts.values())
        self.demand(by == "operator", "NotOperator")
        self.demand(self.status != "paused", "RunNotActive")
        self.demand(not self.is_over, "RunIsOver")
        self.demand(epoch == len(self.promises) + 1, "WrongEpoch")
        since = self.promised_at or self.created_at
        epochs = (self.now - since) // T["epochTime"]
        self.demand(epochs > 0, "EpochTooSoon")
        self.demand(total >= self.promised, "TotalFell")
        self.demand(total - self.promised <= epochs * T["epochBudget"], "OverBudget")
        self.demand(total - self.claimed.total() <= self.balances["pool"], "Insolvent")
        wanted = Promise(total, 0, head_size, dict(amounts))
        self.demand(len(self.votes.get(wanted.statement, ())) < T["quorum"], "RootVoid")
        last = self.promises[-1] if self.promises else Promise(0, 0, 0, {})
        before = self.void.pop(epoch, None)
        pending = last.voids if last.matures_at > self.now else 0
        wanted.voids = min(DOUBLINGS_MAX, max(before.voids + 1 if before else 0, pending))
        wanted.matures_at = max(last.matures_at, self.now + min(T["payoutDelay"] << wanted.voids, self.delay))
        self.promises.append(wanted)
        self.promised_at = self.now

    def challenge(self, by: str, node: str, epoch: int, amounts: dict[str, int], anchored_at: int) -> None:
        self.demand(0 < epoch <= len(self.promises), "EpochUnknown")
        promise = self.promises[epoch - 1]
        self.demand(promise.amounts == amounts, "RootDiffers")
        self.demand(self.now < promise.matures_at, "ChallengeTooLate")
        position = self.position(node)
        self.demand(position.slashable >= T["stakeMin"], "JudgeStakeTooSmall")
        self.demand(position.bound_at <= anchored_at, "JudgeTooNew")
        self.demand(by in (node, position.owner), "NotChallenger")
        against = self.votes.setdefault(promise.statement, set())
        self.demand(position.owner not in against, "OwnerTwice")
        against.add(str(position.owner))
        if len(against) >= T["quorum"]:
            self.void |= {number: self.promises[number - 1] for number in range(epoch, len(self.promises) + 1)}
            del self.promises[epoch - 1 :]

    def claim(self, epoch: int, account: str) -> int:
        self.demand(0 < epoch <= len(self.promises), "EpochUnknown")
        promise = self.promises[epoch - 1]
        self.demand(not self.frozen_at or promise.matures_at <= self.frozen_at, "PromiseVoid")
        self.demand(self.now >= promise.matures_at, "NotMatured")
        amount = max(0, promise.amounts[account] - self.claimed[account])
        # What an operator takes back from one account in a later root was paid all the same, and others lack it.
        matured = self.matured(self.frozen_at or self.now)
        self.demand(not amount or self.claimed.total() + amount <= matured, "PromiseExceeded")
        self.claimed[account] += amount
        self.move("pool", account, amount)
        return amount

    def reclaim(self, by: str) -> int:
        self.demand(self.is_over or self.is_abandoned, "RunNotOver")
        self.demand(self.funded[by] > 0, "NothingFunded")
        self.abandoned = self.abandoned or not self.is_over
        amount = max(0, self.rest() - self.forfeited) * self.funded[by] // self.funded.total()
        del self.funded[by]
        self.move("pool", by, amount)
        return amount

    def burn_rest(self) -> int:
        self.demand(self.is_over, "RunNotOver")
        self.demand(not self.funded.total(), "FundersLeft")
        amount = self.rest()
        self.demand(amount > 0, "AmountMissing")
        self.move("pool", BURNED, amount)
        return amount

    def rest(self) -> int:
        return self.balances["pool"] + self.claimed.total() - self.valid_promised

    # --- The run and its log ---

    def set_status(self, status: str) -> None:
        self.demand(self.status not in ("closed", status), "StatusRefused")
        self.status = status
        if status == "closed":
            self.closed_at = self.now

    def freeze(self, *, is_conflict: bool) -> None:
        self.demand(is_conflict, "SameHistory")
        self.demand(not self.frozen_at, "LogFrozen")
        self.frozen_at = self.now

    # --- Value ---

    def move(self, giver: str, taker: str, amount: int) -> None:
        assert self.balances[giver] >= amount, f"{giver} has {self.balances[giver]}, not {amount}"
        self.balances[giver] -= amount
        self.balances[taker] += amount

    def demand(self, is_met: bool, error: str) -> None:
        if not is_met:
            raise No(error)
