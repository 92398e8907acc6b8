"""Appeals before the court on a chain, made by the node itself where its owner allows it: `appeal_bond_max_nano`.

In the log a node appeals for nothing. The court wants a bond, and that is the owner's to give: without leave the log
says which command gives it. What is still to be appealed lies in a file, so a restart forgets none.
"""

import json
import logging
from enum import StrEnum
from typing import TYPE_CHECKING

from prime_node.config import NodeConfig
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import Digest
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import EMBEDDED_DOMAIN
from prime_runtime.clock import Clock
from prime_runtime.formatting import format_amount
from prime_runtime.log_files import write_atomic

if TYPE_CHECKING:
    from prime_node.settlement.chain_session import ChainSession


log = logging.getLogger(__name__)

POLL_MS = 5_000
WAIT_MS_MAX = 7 * 24 * 3_600_000
"""How long a slash is waited for that the coordinator does not bring before the court."""


class AppealAction(StrEnum):
    """What to do about a slash of ours just now."""

    WAIT = "wait"
    BOND = "bond"
    TOO_EXPENSIVE = "dear"
    TOO_LATE = "late"
    DONE = "done"


def decide_appeal(status: int, *, appeal_until_s: int, now_s: int, bond_nano: int, bond_max_nano: int) -> AppealAction:
    """Status: ICourt.SlashStatus, of which 1 is the only one that can be appealed."""
    if status == 0:
        return AppealAction.WAIT
    if status > 1:
        return AppealAction.DONE
    if now_s >= appeal_until_s:
        return AppealAction.TOO_LATE
    return AppealAction.BOND if bond_nano <= bond_max_nano else AppealAction.TOO_EXPENSIVE


class ChainAppeals:
    """One node's."""

    def __init__(self, config: NodeConfig, key: WalletKey, clock: Clock) -> None:
        self._config = config
        self._key = key
        self._clock = clock
        self._path = NodeFolder(config.folder).chain / "appeals.json"
        self._pending = self._read() if self.is_allowed else {}
        """Submissions to appeal for, and since when."""
        self._problem = ""

    @property
    def is_allowed(self) -> bool:
        config = self._config
        return config.signing_domain != EMBEDDED_DOMAIN and bool(config.rpc) and config.appeal_bond_max_nano > 0

    def request_appeal(self, submission: Digest) -> None:
        """The log has our appeal; the court shall have it too."""
        if self._config.signing_domain == EMBEDDED_DOMAIN:
            return
        if not self.is_allowed:
            log.warning(
                "the slash of %s is appealed in the log; before the court on the chain: prime-node appeal %s."
                " The settings rpc and appeal_bond_max_nano let the node do it",
                submission,
                submission,
            )
            return
        self._pending.setdefault(submission, self._clock.now_ms())
        self._save()

    async def run(self) -> None:
        """As long as the node."""
        while True:
            if self._pending:
                await self.process_pending()
            await self._clock.sleep_ms(POLL_MS)

    async def process_pending(self) -> None:
        """Do what can be done for each; a chain that does not answer is asked again."""
        from prime_node.settlement.chain_session import (
            open_chain_session,  # web3 takes a second to load, and most nodes never need it
        )

        try:
            async with open_chain_session(self._config, self._key, self._config.rpc, self._clock) as purse:
                for submission in list(self._pending):
                    await self._advance(purse, submission)
            self._problem = ""
        except LocalError as error:
            if str(error) != self._problem:
                log.warning("the appeal before the court waits: %s", error)
            self._problem = str(error)

    async def _advance(self, purse: "ChainSession", submission: Digest) -> None:
        seen = await purse.read_slash(submission)
        bond_nano = -(-seen.bond // purse.contracts.scale)
        now_s = (await purse.chain.newest()).time_s
        move = decide_appeal(
            seen.status,
            appeal_until_s=seen.appeal_until_s,
            now_s=now_s,
            bond_nano=bond_nano,
            bond_max_nano=self._config.appeal_bond_max_nano,
        )
        if move is AppealAction.WAIT and self._clock.now_ms() - self._pending[submission] < WAIT_MS_MAX:
            return
        if move is AppealAction.BOND:
            block = await purse.appeal(submission, seen.bond)
            log.info(
                "a bond of %s tokens for %s is with the court, by block %d", format_amount(bond_nano), submission, block
            )
        else:
            log_appeal_end(submission, move, bond_nano)
        del self._pending[submission]
        self._save()

    def _read(self) -> dict[Digest, int]:
        try:
            plain = json.loads(self._path.read_bytes())
            return {Digest.parse(name): int(since_ms) for name, since_ms in plain.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RemoteError) as error:
            log.warning("%s cannot be read (%s): see `prime-node rollouts` for slashes to appeal", self._path, error)
            return {}

    def _save(self) -> None:
        plain = {str(name): since_ms for name, since_ms in self._pending.items()}
        write_atomic(self._path, json.dumps(plain).encode(), mode=0o600)


def log_appeal_end(submission: Digest, move: AppealAction, bond_nano: int) -> None:
    """Why nothing is done, or nothing more."""
    match move:
        case AppealAction.TOO_EXPENSIVE:
            log.warning(
                "the bond for %s is %s tokens, more than appeal_bond_max_nano allows: prime-node appeal %s",
                submission,
                format_amount(bond_nano),
                submission,
            )
        case AppealAction.TOO_LATE | AppealAction.WAIT:
            log.warning("%s could not be appealed before the court: its window is over", submission)
        case _:
            log.info("%s is appealed before the court, or has ended there", submission)
