"""Deploys a network's contracts one after the other. Each is recorded at once, so an interrupted deployment resumes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from prime_coordinator.settlement.files import ChainFiles
from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import NetworkId, NodeId
from prime_runtime.chain.client import TOKEN, ChainClient, Contract
from prime_runtime.chain.contracts import NetworkContracts, find_contracts, read_scale
from prime_runtime.chain.wallet import Wallet

GAS_NEEDED = 15_000_000
"""Gas of all contracts together, rounded up."""
PrintLine = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DeploymentPlan:
    """What is to be deployed."""

    network: NetworkId
    unbonding_s: int
    token: NodeId | None
    """None: deploy a test token."""
    supply: int = 0
    """Of the test token, in its smallest unit."""
    supply_to: NodeId | None = None
    """Who gets the test token; None: the deployer."""


class Deployer:
    """One deployment, by the coordinator's key. Deploying gives that key no extra rights."""

    def __init__(
        self, chain: ChainClient, wallet: Wallet, files: ChainFiles, plan: DeploymentPlan, say: PrintLine
    ) -> None:
        self._chain = chain
        self._wallet = wallet
        self._files = files
        self._plan = plan
        self._say = say
        self._made: dict[str, Any] = files.read_deployment()

    async def deploy(self) -> NetworkContracts:
        """Deploy what is missing."""
        plan = self._plan
        named = {
            "chain_id": await self._chain.chain_id(),
            "network": str(plan.network),
            "unbonding_s": plan.unbonding_s,
            "token": str(plan.token or "a test token"),
        }
        self._check(named)
        if plan.token is not None:
            await read_scale(self._chain, Contract(TOKEN, plan.token))
        if "Court" not in self._made:
            await self._check_gas()
        head = await self._chain.newest()
        self._note(**named, start_block=self._made.get("start_block", head.number))
        token = plan.token or await self._make(TOKEN, "Test token", "TEST", plan.supply)
        if plan.token is None and plan.supply_to is not None and "supplied" not in self._made:
            there = Contract(TOKEN, token)
            await self._wallet.send_and_wait(
                "the supply of test tokens", there, "transfer", plan.supply_to, plan.supply
            )
            self._note(supplied=str(plan.supply_to))
        registry = await self._make("RunRegistry", str(plan.network), self._wallet.node, plan.unbonding_s)
        anchor = await self._make("LogAnchor", registry)
        court = await self._make("Court", token, registry, anchor)
        return await find_contracts(self._chain, court)

    def _check(self, named: Mapping[str, Any]) -> None:
        """Refuse to resume a deployment with other parameters."""
        for name, value in named.items():
            if self._made.get(name, value) != value:
                raise LocalError(
                    f"{self._files.deployment} was begun with {name} {self._made[name]}, not {value}:"
                    " give the same again, or choose another folder"
                )

    async def _check_gas(self) -> None:
        head = await self._chain.newest()
        needed, held = GAS_NEEDED * head.base_fee_wei, await self._chain.balance_wei(self._wallet.node)
        if held < needed:
            raise LocalError(
                f"the coordinator's account {self._wallet.node} holds {held} wei and needs about {needed} for gas:"
                " send it some and run this again"
            )

    async def _make(self, name: str, *values: Any) -> NodeId:
        if name in self._made:
            return NodeId.parse(self._made[name])
        if not any(sent.purpose == name for sent in self._wallet.pending):
            await self._wallet.send_data(name, "", self._chain.encode_creation(name, *values))
        mined = await self._wallet.wait_for(name)
        assert mined.contract is not None
        self._note(**{name: str(mined.contract)})
        self._say(f"{name} is at {mined.contract}")
        return mined.contract

    def _note(self, **facts: Any) -> None:
        self._made.update(facts)
        self._files.write_deployment(self._made)
