"""Moves value on a chain for a node's owner: stake, unbond, withdraw, claim, appeal; and writes the entries to the log.

Each command can be repeated after an interruption: a started deposit or claim is resumed, and a withdrawal of nothing
changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from prime_node.cli.stake import fetch_stake, send_entry
from prime_node.config import NodeConfig
from prime_node.settlement.chain_session import ChainSession, open_chain_session
from prime_node.settlement.challenges import fetch_payout_tree
from prime_node.storage.node_folder import NodeFolder
from prime_protocol.errors import LocalError
from prime_protocol.ledger.entries import Appealed, Released, Staked, Unbonded, Withdrawn
from prime_protocol.wire.ids import Digest, NodeId, RunId
from prime_protocol.wire.signing import WalletKey
from prime_protocol.wire.typed_data import Consent, Domain, sign_document
from prime_runtime.chain.abi import compute_penalty_name
from prime_runtime.chain.client import ChainClient, Contract, MinedTransaction
from prime_runtime.chain.contracts import NetworkContracts, run_key
from prime_runtime.chain.payments import Payer, Payment, wait_until_logged
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from prime_runtime.formatting import format_amount
from prime_runtime.http.client import CallRefused
from prime_runtime.http.coordinator_api import open_json_client

DEPOSIT, CLAIM = "the deposit", "the claim"


class ChainStaking:
    """Moves one owner's value between wallet, vault and log."""

    def __init__(
        self, config: NodeConfig, node_key: WalletKey, owner: WalletKey, rpc: str, say: Callable[[str], None]
    ) -> None:
        if not rpc:
            raise LocalError("this network settles on a chain: give its RPC URL with --rpc, or set rpc")
        self._config = config
        self._node_key = node_key
        self._owner = owner
        self._rpc = rpc
        self._say = say
        self._clock = SystemClock()

    @property
    def _node(self) -> NodeId:
        return self._node_key.node

    # --- Commands ---------------------------------------------------------------------------------------------------

    def add(self, amount_nano: int) -> int:
        return self._run(lambda purse: self._add(purse, amount_nano))

    def remove(self, amount_nano: int) -> int:
        return self._run(lambda purse: self._remove(purse, amount_nano))

    def withdraw(self) -> int:
        return self._run(lambda purse: self._withdraw(purse.chain, purse.wallet, purse.contracts))

    def claim(self) -> int:
        return self._run(self._claim)

    def claim_bounty(self) -> int:
        return self._run(self._claim_bounty)

    def appeal(self, submission: Digest, reason: str) -> int:
        return self._run(lambda purse: self._appeal(purse, submission, reason))

    # --- Implementation ---------------------------------------------------------------------------------------------

    async def _add(self, purse: ChainSession, amount_nano: int) -> None:
        """Deposit into the vault; once the deposit is in the log, stake it there."""
        at, units = purse.contracts, amount_nano * purse.contracts.scale
        await self._bind(purse.chain, purse.wallet, at)
        payer = self._payer(purse, at.vault, "deposit")
        wanted = Payment(DEPOSIT, "Deposited", str(self._node), units)
        told = await payer.pay(wanted, lambda: purse.pay(DEPOSIT, at.vault, units, "deposit", self._node, units))
        self._say(f"deposited {format_amount(amount_nano)} in the vault, block {told.block}")
        await self._wait_until_logged(await payer.reference(at.chain_id, told))
        await self._stake(amount_nano)
        payer.mark_logged()

    async def _stake(self, amount_nano: int) -> None:
        """Stake in the log. A running node stakes its balance by itself and may have been faster."""
        try:
            index = await send_entry(self._config, self._owner, Staked(node=self._node, amount_nano=amount_nano))
        except CallRefused as error:
            if (await fetch_stake(self._config, self._node))["stake_nano"] < amount_nano:
                raise LocalError(f"the log refuses the stake: {error.refusal.problem}. See: prime-node stake") from None
            self._say("the node has staked the deposit itself")
            return
        self._say(f"the deposit is staked (entry {index} of the log)")

    async def _bind(self, chain: ChainClient, wallet: Wallet, at: NetworkContracts) -> None:
        """An owner's first stake for another key needs that key's signed consent."""
        position = await chain.read(at.vault, "positionOf", self._node)
        if self._owner.node == self._node or position["owner"].lower() == str(self._owner.node):
            return
        nonce = int(await chain.read(at.vault, "nonceOf", self._node))
        word = Consent(owner=self._owner.node, node=self._node, nonce=nonce)
        consent = sign_document(self._node_key, word, Domain(at.chain_id, at.vault.address))
        await wallet.send_and_wait("the binding", at.vault, "bind", self._node, bytes(consent))

    async def _remove(self, purse: ChainSession, amount_nano: int) -> None:
        """The log comes first: a node must never work on stake that has left the vault."""
        at = purse.contracts
        try:
            index = await send_entry(self._config, self._owner, Unbonded(node=self._node, amount_nano=amount_nano))
            self._say(f"the unbonding is in the log (entry {index} of the log)")
        except CallRefused as error:
            if await self._get_unbonded_nano(purse) < amount_nano:
                raise LocalError(f"the log refuses: {error.refusal.field} {error.refusal.problem}") from None
            self._say("the unbonding is in the log already")
        try:
            await purse.wallet.send_and_wait("the unbonding", at.vault, "unbond", self._node, amount_nano * at.scale)
        except ChainUnavailable as error:
            raise ChainUnavailable(
                f"the log knows, the chain does not yet: {error}. Then type the same again"
            ) from None
        self._say(f"unbonding {format_amount(amount_nano)}; when the delay is over: prime-node withdraw")

    async def _get_unbonded_nano(self, purse: ChainSession) -> int:
        """Stake that the log has unbonded and the vault has not."""
        position = await purse.chain.read(purse.contracts.vault, "positionOf", self._node)
        known = await fetch_stake(self._config, self._node)
        return int(position["stake"]) // purse.contracts.scale - int(known["stake_nano"])

    async def _withdraw(self, chain: ChainClient, wallet: Wallet, at: NetworkContracts) -> None:
        """Vault and log mature by their own clocks; each pays out what has matured there."""
        taken_nano = await self._withdraw_matured(chain, wallet, at)
        if taken_nano:
            self._say(f"withdrew {format_amount(taken_nano)} to the wallet {self._owner.node}")
        before_nano = await self._balance_nano()
        try:
            await send_entry(self._config, self._owner, Released(node=self._node))
        except CallRefused as error:
            if not taken_nano:
                raise LocalError("nothing has matured, neither in the vault nor in the log") from None
            self._say(f"the log has nothing to release: {error.refusal.field} {error.refusal.problem}")
            return
        await self._log(Withdrawn(amount_nano=await self._balance_nano() - before_nano), "the log knows")

    async def _withdraw_matured(self, chain: ChainClient, wallet: Wallet, at: NetworkContracts) -> int:
        """The amount that the vault paid out; 0 if nothing has matured there."""
        try:
            mined = await wallet.send_and_wait("the withdrawal", at.vault, "withdraw", self._node)
        except ContractReverted as error:
            if error.name not in ("NothingMatured", "NodeNotBound"):
                raise
            return 0
        return await self._amount(chain, at.vault, "Withdrawn", mined) // at.scale

    async def _balance_nano(self) -> int:
        """The owner's balance in the log."""
        return int((await fetch_stake(self._config, self._node))["balance_nano"])

    async def _claim(self, purse: ChainSession) -> None:
        """Claim from the newest matured root. The coordinator's table is trusted because its tree has that root."""
        chain, at, run, account = purse.chain, purse.contracts, self._config.run_id, self._owner.node
        payer = self._payer(purse, at.pool, "claim")
        begun = await payer.resume()
        if begun is not None:
            await self._log_claim(payer, begun, at.scale)
        epoch, root = await self._find_matured(chain, at)
        tree = await fetch_payout_tree(self._config, epoch, at.scale)
        if tree.root != root:
            raise LocalError(f"the coordinator's table of epoch {epoch} differs from the chain's: inform its operator")
        if account not in tree.cumulative:
            raise LocalError(f"nothing was paid to {account} up to epoch {epoch} of {run}")
        total = tree.cumulative[account]
        units = total - int(await chain.read(at.pool, "claimedBy", run_key(run), account))
        if units <= 0:
            self._say(f"everything that {run} paid to {account} up to epoch {epoch} is claimed already")
            return
        wanted = Payment(CLAIM, "Claimed", f"0x{run_key(run).hex()}", units, since_entry=await self._log_size())
        call = ("claim", run_key(run), epoch, account, total, tree.proof(account))
        await payer.pay(wanted, lambda: purse.wallet.send_and_wait(CLAIM, at.pool, *call))
        await self._log_claim(payer, wanted, at.scale)

    async def _find_matured(self, chain: ChainClient, at: NetworkContracts) -> tuple[int, bytes]:
        """The newest epoch with a claimable payout, and its root."""
        key, head = run_key(self._config.run_id), await chain.newest()
        for epoch in range(int((await chain.read(at.pool, "poolOf", key))["epoch"]), 0, -1):
            promise = await chain.read(at.pool, "promiseOf", key, epoch)
            if promise["maturesAt"] <= head.time_s:
                return epoch, bytes(promise["root"])
        raise LocalError(f"no payout of {self._config.run_id} can be claimed yet")

    async def _log_claim(self, payer: Payer, claimed: Payment, scale: int) -> None:
        """Write the claim to the log once, even if an earlier command was stopped after doing so."""
        amount_nano = claimed.units // scale
        self._say(f"claimed {format_amount(amount_nano)} of {self._config.run_id} to the wallet {self._owner.node}")
        if not await self._is_withdrawn(amount_nano, claimed.since_entry):
            await self._log(Withdrawn(amount_nano=amount_nano), "the log knows")
        payer.mark_logged()

    async def _is_withdrawn(self, amount_nano: int, since_entry: int) -> bool:
        async with open_json_client(self._config.coordinator, self._config.authority) as client:
            await client.wait_for_index()
            view = await client.get("/log", kind="Withdrawn", author=str(self._owner.node))
            places = [row["idx"] for row in view["entries"]["rows"] if row["idx"] >= since_entry]
            bodies = [(await client.get(f"/log/{place}"))["body"] for place in places]
        return any(body["amount_nano"] == amount_nano for body in bodies)

    async def _log_size(self) -> int:
        async with open_json_client(self._config.coordinator, self._config.authority) as client:
            return int((await client.get("/status"))["entries"])

    async def _appeal(self, purse: ChainSession, submission: Digest, reason: str) -> None:
        """Pay the bond to the court; the log's validators decide. If our entry is refused, the coordinator writes the
        appeal to the log from the chain."""
        slash = await purse.read_slash(submission)
        penalty = compute_penalty_name(submission, self._node)
        if slash.status == 0 and (await purse.read_slash(penalty)).status:
            await self._appeal_penalty(purse, penalty)
            return
        if slash.status == 0:
            raise LocalError(f"the slash of {submission} has not reached the court yet; try again later")
        if slash.status == 1:
            block = await purse.appeal(submission, slash.bond)
            bond = format_amount(slash.bond // purse.contracts.scale)
            self._say(f"paid a bond of {bond} to the court, block {block}")
        try:
            index = await send_entry(
                self._config, self._owner, Appealed(submission=submission, reason=reason), self._config.run_id
            )
        except CallRefused as error:
            # The node may have appealed before, or the log's window is over: the coordinator reports it from the chain.
            self._say(f"the log refuses this appeal ({error.refusal.problem}); the coordinator adds it from the chain")
            return
        self._say(f"the slash is appealed (entry {index} of the log)")

    async def _appeal_penalty(self, purse: ChainSession, penalty: Digest) -> None:
        """The log has decided: what is missing is a quorum that signed the opposite of this node's verdict."""
        held = await purse.read_slash(penalty)
        if held.status == 1:
            block = await purse.appeal(penalty, held.bond)
            bond = format_amount(held.bond // purse.contracts.scale)
            self._say(f"paid a bond of {bond} to the court, block {block}")
        self._say("the penalty is appealed, or has ended: the stake and the bond come back unless a quorum refutes it")

    async def _claim_bounty(self, purse: ChainSession) -> None:
        """From the court; repeating it is harmless. What the log says of the account does not change."""
        units = int(await purse.chain.read(purse.contracts.court, "bountyOf", self._owner.node))
        if not units:
            raise LocalError(f"the court has no bounty for {self._owner.node}. See: prime-node findings")
        await purse.wallet.send_and_wait("the bounty", purse.contracts.court, "claimBounty", self._owner.node)
        amount = format_amount(units // purse.contracts.scale)
        self._say(f"claimed a bounty of {amount} to the wallet {self._owner.node}")

    # --- Helpers ----------------------------------------------------------------------------------------------------

    def _payer(self, purse: ChainSession, contract: Contract, what: str) -> Payer:
        note = NodeFolder(self._config.folder).chain / f"{self._owner.node}-{what}.json"
        return Payer(purse.chain, purse.wallet, contract, note)

    def _run(self, work: Callable[[ChainSession], Awaitable[None]]) -> int:
        async def run() -> None:
            async with open_chain_session(self._config, self._owner, self._rpc, self._clock) as purse:
                await work(purse)

        asyncio.run(run())
        return 0

    async def _amount(self, chain: ChainClient, contract: Contract, name: str, mined: MinedTransaction) -> int:
        """The amount in the transaction's own event; 0 without such an event."""
        events = await chain.events([contract], mined.block, mined.block)
        own = [each for each in events if each.transaction == mined.transaction and each.name == name]
        return int(own[0].values["amount"]) if own else 0

    async def _wait_until_logged(self, reference: Digest) -> None:
        self._say("waiting until the coordinator has confirmed the deposit")
        async with open_json_client(self._config.coordinator, self._config.authority) as client:
            await wait_until_logged(client, reference, self._clock)

    async def _log(self, entry: Any, what: str, run: RunId | None = None) -> None:
        """Send an entry to the log. LocalError if it is refused; what was done on the chain remains."""
        try:
            index = await send_entry(self._config, self._owner, entry, run)
        except CallRefused as error:
            problem = f"{error.refusal.field} {error.refusal.problem}".strip()
            raise LocalError(f"the log refuses {type(entry).__name__}: {problem}") from None
        self._say(f"{what} (entry {index} of the log)")
