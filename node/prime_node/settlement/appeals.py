"""Appeals to the court contract, filed by the node itself up to the bond that its owner allows: `appeal_bond_max_nano`.

An appeal in the log costs nothing. The court requires a bond, which is the owner's money: without permission the node
only logs the command that files the appeal. Pending appeals are kept in a file, so that a restart loses none.
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
from prime_runtime.files import write_atomic
from prime_runtime.formatting import format_amount

if TYPE_CHECKING:
    from prime_node.settlement.chain_session import ChainSession


log = logging.getLogger(__name__)

POLL_MS = 5_000
WAIT_MS_MAX = 7 * 24 * 3_600_000
"""How long to wait for the coordinator to submit a slash to the court."""


class AppealAction(StrEnum):
    """What to do about a slash of this node."""

    WAIT = "wait"
    BOND = "bond"
    TOO_EXPENSIVE = "dear"
    TOO_LATE = "late"
    DONE = "done"


def decide_appeal(status: int, *, appeal_until_s: int, now_s: int, bond_nano: int, bond_max_nano: int) -> AppealAction:
    """`status` is ICourt.SlashStatus; only a slash of status 1 can be appealed."""
    if status == 0:
        return AppealAction.WAIT
    if status > 1:
        return AppealAction.DONE
    if now_s >= appeal_until_s:
        return AppealAction.TOO_LATE
    return AppealAction.BOND if bond_nano <= bond_max_nano else AppealAction.TOO_EXPENSIVE


class ChainAppeals:
    """The appeals of one node. A supervised part of the daemon."""

    def __init__(self, config: NodeConfig, key: WalletKey, clock: Clock) -> None:
        self._config = config
        self._key = key
        self._clock = clock
        self._path = NodeFolder(config.folder).chain / "appeals.json"
        self._pending = self._read() if self.is_allowed else {}
        """Submissions whose slash is to be appealed, and since when."""
        self._problem = ""

    @property
    def is_allowed(self) -> bool:
        config = self._config
        return config.signing_domain != EMBEDDED_DOMAIN and bool(config.rpc) and config.appeal_bond_max_nano > 0

    def request_appeal(self, submission: Digest) -> None:
        """The log has taken this node's appeal; the court has to get it too."""
        if self._config.signing_domain == EMBEDDED_DOMAIN:
            return
        if not self.is_allowed:
            log.warning(
                "the slash of %s is appealed in the log only; to appeal to the court: prime-node appeal %s."
                " With the settings rpc and appeal_bond_max_nano the node appeals by itself",
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
        """Advances each pending appeal; retried at the next poll where the chain does not answer."""
        from prime_node.settlement.chain_session import (
            open_chain_session,  # web3 takes a second to load, and most nodes never need it
        )

        try:
            async with open_chain_session(self._config, self._key, self._config.rpc, self._clock) as session:
                for submission in list(self._pending):
                    await self._advance(session, submission)
            self._problem = ""
        except LocalError as error:
            if str(error) != self._problem:
                log.warning("the appeal to the court is delayed: %s", error)
            self._problem = str(error)

    async def _advance(self, session: "ChainSession", submission: Digest) -> None:
        slash = await session.read_slash(submission)
        bond_nano = -(-slash.bond // session.contracts.scale)
        now_s = (await session.chain.newest()).time_s
        action = decide_appeal(
            slash.status,
            appeal_until_s=slash.appeal_until_s,
            now_s=now_s,
            bond_nano=bond_nano,
            bond_max_nano=self._config.appeal_bond_max_nano,
        )
        if action is AppealAction.WAIT and self._clock.now_ms() - self._pending[submission] < WAIT_MS_MAX:
            return
        if action is AppealAction.BOND:
            block = await session.appeal(submission, slash.bond)
            log.info(
                "appealed the slash of %s to the court with a bond of %s, in block %d",
                submission,
                format_amount(bond_nano),
                block,
            )
        else:
            log_appeal_end(submission, action, bond_nano)
        del self._pending[submission]
        self._save()

    def _read(self) -> dict[Digest, int]:
        try:
            plain = json.loads(self._path.read_bytes())
            return {Digest.parse(name): int(since_ms) for name, since_ms in plain.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, RemoteError) as error:
            log.warning("%s is damaged (%s): see `prime-node rollouts` for slashes to appeal", self._path, error)
            return {}

    def _save(self) -> None:
        plain = {str(name): since_ms for name, since_ms in self._pending.items()}
        write_atomic(self._path, json.dumps(plain).encode(), mode=0o600)


def log_appeal_end(submission: Digest, action: AppealAction, bond_nano: int) -> None:
    """Why no appeal is filed, or none is needed."""
    match action:
        case AppealAction.TOO_EXPENSIVE:
            log.warning(
                "the bond for %s is %s, more than appeal_bond_max_nano allows: prime-node appeal %s",
                submission,
                format_amount(bond_nano),
                submission,
            )
        case AppealAction.TOO_LATE | AppealAction.WAIT:
            log.warning("%s could not be appealed to the court: the appeal window is over", submission)
        case _:
            log.info("the slash of %s is already appealed or settled at the court", submission)
