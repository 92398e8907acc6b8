"""The addresses of our contracts on a chain. All of them follow from the court."""

from dataclasses import dataclass

from prime_protocol.errors import LocalError
from prime_protocol.ledger.randomness import encode_u64
from prime_protocol.wire.ids import Digest, NodeId, digest_fields
from prime_protocol.wire.signing import keccak
from prime_protocol.wire.typed_data import Domain
from prime_runtime.chain.client import TOKEN, ChainClient, Contract
from prime_runtime.chain.transactions import ChainUnavailable, ContractReverted

NANO_DECIMALS = 9
"""The log counts in 10^-9 units of the network's money."""


@dataclass(frozen=True, slots=True)
class NetworkContracts:
    """The contracts of one network."""

    chain_id: int
    court: Contract
    vault: Contract
    pool: Contract
    registry: Contract
    anchor: Contract
    token: Contract
    scale: int
    """Units of the chain's token per nano."""

    @property
    def domain(self) -> Domain:
        """The domain for which receipts are signed."""
        return Domain(self.chain_id, self.court.address)

    @property
    def head_domain(self) -> Domain:
        return Domain(self.chain_id, self.anchor.address)

    @property
    def watched(self) -> list[Contract]:
        """Contracts whose events are followed."""
        return [self.vault, self.court, self.anchor, self.pool]


async def find_contracts(chain: ChainClient, court: NodeId) -> NetworkContracts:
    """Read the addresses of the other contracts from the court."""
    at = Contract("Court", court)
    if not await chain.has_code(court):
        raise ChainUnavailable(f"there is no contract at {court} on this chain; is it the right chain?")
    try:
        named = {
            name: await _read_address(chain, at, name) for name in ("vault", "pool", "registry", "logAnchor", "token")
        }
    except ContractReverted:
        raise ChainUnavailable(
            f"the contract at {court} is not a court of ours; `chain deploy` has printed its address"
        ) from None
    token = Contract(TOKEN, named["token"])
    scale = await read_scale(chain, token)
    return NetworkContracts(
        await chain.chain_id(),
        at,
        Contract("StakeVault", named["vault"]),
        Contract("RewardPool", named["pool"]),
        Contract("RunRegistry", named["registry"]),
        Contract("LogAnchor", named["logAnchor"]),
        token,
        scale,
    )


async def read_scale(chain: ChainClient, token: Contract) -> int:
    """Units of the token per nano. LocalError: the token has too few decimals for the log's amounts."""
    decimals = int(await chain.read(token, "decimals"))
    if decimals < NANO_DECIMALS:
        raise LocalError(f"the token has {decimals} decimals, at least {NANO_DECIMALS} are needed")
    return int(10 ** (decimals - NANO_DECIMALS))


async def _read_address(chain: ChainClient, contract: Contract, function: str) -> NodeId:
    return NodeId.parse(str(await chain.read(contract, function)).lower())


def deposit_reference(chain_id: int, contract: NodeId, transaction: str, place: int) -> Digest:
    """The name of a deposit in the log. `place` is the index of its event in its transaction, in whatever block."""
    raw = bytes.fromhex(transaction.removeprefix("0x"))
    return digest_fields("chain deposit/1", encode_u64(chain_id), contract, raw, encode_u64(place))


def run_key(run: str) -> bytes:
    """The name of a run on the chain."""
    return keccak(run.encode())
