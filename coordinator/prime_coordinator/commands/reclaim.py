"""`prime-coordinator chain reclaim`: a funder's money back from a run that is over.

It needs the chain and no coordinator: whoever ran that may be gone.
"""

from prime_coordinator.commands.chain import with_chain
from prime_coordinator.commands.context import Context
from prime_coordinator.commands.orders import read_address, read_run
from prime_protocol.errors import LocalError
from prime_runtime import key_file
from prime_runtime.chain.caps import GasConfig
from prime_runtime.chain.client import Chain
from prime_runtime.chain.contracts import find_contracts, run_key
from prime_runtime.chain.errors import ChainRefused
from prime_runtime.chain.wallet import Wallet
from prime_runtime.clock import SystemClock
from prime_runtime.password import read_first_line
from prime_runtime.wording import show_amount

WHY = {
    "RunNotOver": "the run goes on: its money comes back once it was closed for one unbonding delay, its log was shown"
    " to tell two histories, or nothing was promised for four unbonding delays",
    "NothingFunded": "this wallet has nothing in the run's pool, or has taken it back",
    "RunUnknown": "the chain has no such run: look at the name and at --court",
}


def reclaim(context: Context) -> int:
    """What the run has not promised to anybody, by what each funder put in."""
    args = context.args
    run, court = read_run(args.run), read_address(args.court)
    key = key_file.load(args.key, read_first_line(args.key_password_file))

    async def work(chain: Chain) -> None:
        at = await find_contracts(chain, court)
        wallet = Wallet(chain, key, SystemClock(), gas=GasConfig(fee_gwei_max=args.fee_gwei_max))
        try:
            mined = await wallet.do("the reclaim", at.pool, "reclaim", run_key(run))
        except ChainRefused as error:
            raise LocalError(WHY.get(error.name, str(error))) from None
        events = await chain.events([at.pool], mined.block, mined.block)
        told = [each for each in events if each.transaction == mined.transaction and each.name == "Reclaimed"]
        amount = int(told[0].values["amount"])
        context.screen.say(f"{show_amount(amount // at.scale)} tokens of {run} are in the wallet {key.node}")

    return with_chain(args.rpc, None, work)
