"""A validator compares every payout root on the chain with the ledger that it replays, and votes against wrong ones.

The setting `rpc` allows it: votes cost gas from the node's own wallet. The table at an anchored head comes from samples
of the replayed ledger. Where there is no sample, because the node started later, the log says to use the command.
"""

import logging
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Protocol

from prime_node.config import NodeConfig
from prime_node.settlement.payout_check import PaidHistory, PostedRoot, is_right_for, read_paid
from prime_protocol.errors import LocalError
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN
from prime_runtime.clock import Clock

if TYPE_CHECKING:
    from prime_node.settlement.chain_session import ChainSession

log = logging.getLogger(__name__)

SAMPLE_MS = 5_000
CHAIN_POLL_MS = 60_000
"""Between two looks at the chain. A root matures an hour after it was posted, by default."""
SEEN_MAX = 1_024
"""Roots that are not checked again."""


class ReplayedLedger(Protocol):
    """What the watch needs of the LedgerFollower."""

    @property
    def size(self) -> int: ...

    def query(self, function: Any, /, *args: Any) -> Awaitable[Any]: ...


class PayoutWatch:
    """The payout roots of one run. A supervised part of the daemon."""

    def __init__(self, config: NodeConfig, key: WalletKey, ledger: ReplayedLedger, clock: Clock) -> None:
        self._config = config
        self._key = key
        self._ledger = ledger
        self._clock = clock
        self._history = PaidHistory()
        self._seen: deque[PostedRoot] = deque(maxlen=SEEN_MAX)
        """Roots that were decided."""
        self._problem = ""

    @staticmethod
    def is_allowed(config: NodeConfig) -> bool:
        return config.signing_domain != EMBEDDED_DOMAIN and bool(config.rpc)

    async def run(self) -> None:
        """As long as the node."""
        next_ms = 0
        while True:
            try:
                await self.sample()
                if self._clock.monotonic_ms() >= next_ms:
                    next_ms = self._clock.monotonic_ms() + CHAIN_POLL_MS
                    await self.check_chain()
                self._problem = ""
            except LocalError as error:
                if str(error) != self._problem:
                    log.warning("payout roots are not checked at the moment: %s", error)
                self._problem = str(error)
            await self._clock.sleep_ms(SAMPLE_MS)

    async def sample(self) -> None:
        known = self._history.paid
        known_nano = sum(known.values()) if known is not None else -1
        size, paid = await self._ledger.query(read_paid, self._config.run_id, known_nano)
        table = known if paid is None else paid
        assert table is not None
        self._history.add(size, table)

    async def check_chain(self) -> None:
        # web3 takes a second to load, and most nodes never need it
        from prime_node.settlement.chain_session import open_chain_session
        from prime_node.settlement.challenges import read_pending_roots

        async with open_chain_session(self._config, self._key, self._config.rpc, self._clock) as session:
            for posted in await read_pending_roots(session, self._config.run_id):
                if posted not in self._seen and not await self._check(session, posted):
                    return  # it makes those after it void too, or nothing later can be decided yet

    async def _check(self, session: "ChainSession", posted: PostedRoot) -> bool:
        """Whether to go on with the next root."""
        if self._ledger.size < posted.head_size:
            return False
        paid = self._history.find(posted.head_size)
        if paid is None:
            log.warning(
                "the payout root of epoch %d names %d entries, and this node has no ledger of that size: compare it"
                " with: prime-node challenge",
                posted.epoch,
                posted.head_size,
            )
            self._seen.append(posted)
            return True
        is_right = is_right_for(paid, posted, scale=session.contracts.scale)
        if is_right:
            log.info("the payout root of epoch %d is the one that the log gives", posted.epoch)
        else:
            await self._vote(session, posted)
        self._seen.append(posted)
        return is_right

    async def _vote(self, session: "ChainSession", posted: PostedRoot) -> None:
        """LocalError: the chain does not answer, or the wallet is empty; it is tried again."""
        from prime_node.settlement.challenges import find_head_root, vote
        from prime_runtime.chain.transactions import ContractReverted

        log.error(
            "THE PAYOUT ROOT OF EPOCH %d IS WRONG: %s, and the log gives another at entry %d; voting against it",
            posted.epoch,
            posted.root,
            posted.head_size,
        )
        run = self._config.run_id
        try:
            head_root = await find_head_root(session, run, posted.head_size)
            votes, is_void = await vote(session, run, self._key.node, posted, head_root)
        except ContractReverted as error:
            log.warning("the vote against the payout root of epoch %d is refused: %s", posted.epoch, error)
            return
        log.warning("voted against the payout root of epoch %d: %d votes%s", posted.epoch, votes, ", void" * is_void)
