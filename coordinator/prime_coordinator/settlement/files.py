"""The files of settlement in the coordinator's folder. All but the pending transactions can be recreated from the chain
and the log.

chain/followed.json      what the events say, and up to which block
chain/transactions.json  sent, not yet final
chain/deployment.json    contracts made by `chain deploy`
chain/payouts/RUN/EPOCH  the table behind the payout root of an epoch, for claims
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from prime_coordinator.settlement.chain_events import ChainDeposit, FollowedChain, VaultStake
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NodeId, RunId
from prime_runtime.files import write_atomic

log = logging.getLogger(__name__)


class ChainFiles:
    """Paths and files in the `chain` subfolder of one coordinator."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "chain"

    @property
    def transactions(self) -> Path:
        return self._folder / "transactions.json"

    @property
    def deployment(self) -> Path:
        return self._folder / "deployment.json"

    def get_wallet_path(self, account: NodeId) -> Path:
        """Transactions of another wallet, sent by a command."""
        return self._folder / f"{account}.json"

    def read_followed(self, start_block: int) -> FollowedChain:
        """The stored position; the deployment's block if there is none or it cannot be read."""
        try:
            plain = json.loads((self._folder / "followed.json").read_bytes())
            stakes = {node: VaultStake(**row) for node, row in plain.pop("stakes").items()}
            unassigned = [ChainDeposit(**row) for row in plain.pop("unassigned")]
            return FollowedChain(stakes=stakes, unassigned=unassigned, **plain)
        except FileNotFoundError:
            pass
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("followed.json cannot be read (%s): events are read again from the deployment on", error)
        return FollowedChain(block=start_block - 1)

    def write_followed(self, followed: FollowedChain) -> None:
        write_atomic(self._folder / "followed.json", json.dumps(asdict(followed)).encode(), mode=0o600)

    def write_payout(self, run: RunId, epoch: int, size: int, paid: Mapping[NodeId, int]) -> None:
        """Store the table behind a root before the root is sent: without it no account could prove its claim."""
        plain = {
            "run": str(run),
            "epoch": epoch,
            "size": size,
            "paid_nano": {str(key): paid[key] for key in sorted(paid)},
        }
        write_atomic(self.payout(run, epoch), json.dumps(plain).encode())

    def payout(self, run: RunId, epoch: int) -> Path:
        return self._folder / "payouts" / run / f"{epoch}.json"

    def read_deployment(self) -> dict[str, Any]:
        try:
            plain = json.loads(self.deployment.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise LocalError(f"{self.deployment} cannot be read: {error}") from None
        return dict(plain)

    def write_deployment(self, plain: Mapping[str, Any]) -> None:
        write_atomic(self.deployment, json.dumps(dict(plain), indent=2).encode())
