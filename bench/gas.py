"""What the contracts cost on a real chain (anvil), and what 10,000 rollouts cost against a transaction per submission.

Gas is exact, the same on every machine. The public original writes each submission to the chain: its `submitWork`, as
published, was measured at 226,765 gas (Solidity 0.8.37, 200 optimizer runs, via-IR). Its submissions are files of whole
groups; the smallest is one prompt with 16 answers, and that is what we compare with. Rollouts come as fast as in the
public run INTELLECT-2: 4,096 in 22 minutes. A slower run pays more epochs for the same rollouts, a faster one fewer.
"""

import json
import math
import socket
import subprocess
import time
import urllib.request
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmark import BenchmarkParser, print_result, stop_without

from prime_coordinator.settlement.config import SettlementConfig
from prime_protocol.ledger.entries import SlashExecuted, SlashOverturned, SlashProposed, ValidatorScored
from prime_protocol.wire.ids import Digest
from support.contracts.evm import CHAIN_ID, DAY_S, Chain, Refused, refusal
from support.contracts.network import EVIDENCE, RUN_KEY, Scene, key_of, payout_leaf, payout_node

ANVIL = Path(__file__).parents[1] / "contracts" / "node_modules" / ".bin" / "anvil"
SUBMIT_WORK_GAS = 226_765
"""The public ComputePool.submitWork, one call."""
GROUP = 16
ROLLOUTS = 10_000
STEP_ROLLOUTS, STEP_S = 4_096, 22 * 60
ACCOUNTS = 1_024


class AnvilChain(Chain):
    """The same contracts behind anvil's JSON-RPC: every call is a transaction in a block of its own."""

    def start(self) -> None:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ["--host", "127.0.0.1", "--port", str(port), "--chain-id", str(CHAIN_ID), "--hardfork", "cancun"]
        self.process = subprocess.Popen([str(ANVIL), *options, "--auto-impersonate", "--silent", "--base-fee", "0"])
        self.url = f"http://127.0.0.1:{port}"
        for _ in range(200):
            try:
                self.ask("eth_chainId")
                return
            except OSError:
                time.sleep(0.05)
        raise SystemExit("anvil did not answer within 10 s")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def ask(self, method: str, *values: Any) -> Any:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": values}).encode()
        request = urllib.request.Request(self.url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as reply:
            answer = json.load(reply)
        if "error" in answer:
            data = answer["error"].get("data")
            if isinstance(data, str) and len(data) >= 10:
                raise refusal(bytes.fromhex(data.removeprefix("0x")))
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def warp(self, now_s: int) -> None:
        self.now_s = now_s
        self.ask("evm_setTime", now_s)
        self.ask("evm_mine")

    def create(self, code: bytes) -> tuple[str, int]:
        receipt = self._transact({"from": self.deployer, "data": "0x" + code.hex()})
        return str(receipt["contractAddress"]), int(receipt["gasUsed"], 16)

    def send(self, by: str, to: str, data: bytes) -> tuple[bytes, int]:
        call = {"from": by, "to": to, "data": "0x" + data.hex()}
        output = bytes.fromhex(self.ask("eth_call", call, "latest").removeprefix("0x"))
        return output, int(self._transact(call)["gasUsed"], 16)

    def _transact(self, call: dict[str, str]) -> dict[str, Any]:
        name = self.ask("eth_sendTransaction", call | {"gas": hex(15_000_000), "gasPrice": "0x0"})
        receipt: dict[str, Any] | None = None
        while receipt is None:  # anvil answers before it has mined
            receipt = self.ask("eth_getTransactionReceipt", name)
        assert receipt["status"] == "0x1", receipt
        return receipt


class Measured:
    """One network, taken through everything that can happen to it."""

    def __init__(self, entries: int) -> None:
        operator = key_of("operator")
        self.chain = AnvilChain(operator.node, now_s=2_000_000_000, delay_s=10 * DAY_S)
        self.scene = Scene(self.chain, operator)
        self.rows: dict[str, int] = {}
        self.anchor_gas = 0
        self.entries = entries

    def skip(self, time_s: int) -> None:
        # Blocks that come faster than seconds run ahead of the clock that was set.
        self.chain.warp(self.chain.now_s + time_s + 600)

    def note(self, name: str, function: str) -> None:
        self.rows[name] = self.chain.gas[function]

    def measure(self) -> None:
        for name in ("TestToken", "RunRegistry", "LogAnchor", "Court"):
            self.note(f"deploy {name}", f"deploy {name}")
        self.scene.create_run(slashPerDay=10_000)
        self.note("create a run", "createRun")
        self.measure_stake()
        self.measure_anchors()
        self.measure_slashes()
        self.measure_payouts()
        self.measure_challenge()
        self.measure_penalties()
        self.measure_leaving()

    def measure_stake(self) -> None:
        for number in range(6):
            self.scene.stake(key_of(f"judge-{number}").node, 1000)
        self.scene.stake(key_of("ann").node, 5000)
        self.note("approve", "approve")
        self.note("stake, first", "deposit")
        self.scene.stake(key_of("ann").node, 1000)
        self.note("stake, later", "deposit")

    def grow(self, count: int) -> None:
        first = len(self.scene.log.leaves)
        for number in range(first, first + count):
            self.scene.log.add(b"entry %d" % number)

    def measure_anchors(self) -> None:
        self.grow(3)
        self.scene.log.anchor()
        self.note("anchor, first", "anchor")
        for count in (1, self.entries, 1_000):
            self.grow(count)
            self.scene.log.anchor()
            self.note(f"anchor {count:,} more, of {len(self.scene.log.leaves):,} entries", "anchor")
        self.anchor_gas = self.chain.gas["anchor"]

    def measure_slashes(self) -> None:
        judges = [key_of(f"judge-{number}") for number in range(6)]
        for lease, end in enumerate(("execute", "cancel", "refund", "uphold", "overturn")):
            name = self.propose(lease, judges[:3])
            if end == "execute":
                self.skip(3 * DAY_S)
                self.execute(name)
                self.note("execute with a bounty", "execute")
            elif end == "cancel":
                self.chain.call(self.chain.court, "overturn", name, self.logged(SlashOverturned(submission=name)))
                self.note("overturn by the log's word", "overturn")
            else:
                self.appeal(name, judges, end)

    def execute(self, name: Digest) -> None:
        """With a bounty, which is claimed."""
        finder = key_of("finder").node
        entry = self.logged(SlashExecuted(submission=name, bounty_to=finder))
        self.chain.call(self.chain.court, "execute", name, finder, entry)
        self.chain.call(self.chain.court, "claimBounty", finder)
        self.note("claim a bounty", "claimBounty")

    def measure_penalties(self) -> None:
        validator, others = key_of("judge-0"), [key_of(f"judge-{number}") for number in range(1, 4)]
        for end in ("executePenalty", "judgePenalty"):
            submission = Digest(sha256(end.encode()).digest())
            (verdict,) = self.scene.verdicts(submission, 2, [validator])
            entry = self.logged(ValidatorScored(submission=submission, validator=validator.node, penalty_nano=400))
            values = RUN_KEY, submission, verdict, 400, entry
            penalty = self.chain.call(self.chain.court, "proposePenalty", *values)
            self.note("propose a penalty", "proposePenalty")
            if end == "executePenalty":
                self.skip(3 * DAY_S)
                self.chain.call(self.chain.court, end, penalty)
                self.note("execute a penalty", end)
                continue
            self.scene.give(validator.node, 50, self.chain.court)
            self.chain.call(self.chain.court, "appeal", penalty, by=validator.node)
            verdicts = self.scene.verdicts(submission, 0, others)
            self.chain.call(self.chain.court, end, submission, validator.node, verdicts)
            self.note("judge the appeal of a penalty", end)

    def appeal(self, name: Digest, judges: list[Any], end: str) -> None:
        self.scene.give(key_of("ann").node, 50, self.chain.court)
        self.chain.call(self.chain.court, "appeal", name, by=key_of("ann").node)
        self.note("appeal", "appeal")
        if end == "refund":
            self.skip(3 * DAY_S)
            self.chain.call(self.chain.court, "refund", name)
            self.note("refund an undecided appeal", "refund")
        else:
            self.judge(name, judges, is_fraudulent=end == "uphold")
            self.note(f"judge an appeal: {end}", "judge")

    def logged(self, entry: SlashExecuted | SlashOverturned | ValidatorScored) -> tuple[Any, ...]:
        """Written, anchored, and in the form the court wants."""
        index = self.scene.write(entry)
        self.scene.log.anchor()
        return self.scene.log.entry(index)

    def propose(self, lease: int, judges: list[Any]) -> Digest:
        name, receipt = self.scene.submission(key_of("ann"), lease)
        index = self.scene.write(SlashProposed(submission=name, amount_nano=600, evidence=EVIDENCE))
        self.scene.log.anchor()
        verdicts, entry = self.scene.verdicts(name, 2, judges), self.scene.log.entry(index)
        self.chain.call(self.chain.court, "propose", RUN_KEY, receipt, verdicts, EVIDENCE, entry)
        self.note("propose a slash, quorum of 3", "propose")
        return name

    def judge(self, name: Digest, judges: list[Any], *, is_fraudulent: bool) -> None:
        entry = self.logged((SlashExecuted if is_fraudulent else SlashOverturned)(submission=name))
        first = sorted(bytes(key.node) for key in judges[:3])
        verdicts = self.scene.verdicts(name, 2 if is_fraudulent else 0, judges[3:])
        self.chain.call(self.chain.court, "judge", name, [*first, *first], verdicts, bytes(20), entry)

    def measure_payouts(self) -> None:
        sponsor = key_of("sponsor").node
        self.scene.give(sponsor, 10_000, self.chain.pool)
        self.chain.call(self.chain.pool, "fund", RUN_KEY, 10_000, by=sponsor)
        self.note("fund a run", "fund")
        accounts = [bytes(key_of("ann").node), *(sha256(b"%d" % i).digest()[:20] for i in range(1, ACCOUNTS))]
        for epoch, each in ((1, 2), (2, 4), (3, 6)):
            self.skip(DAY_S)
            self.scene.write(SlashExecuted(submission=EVIDENCE))
            self.scene.log.anchor()
            root, proof = tree_of([payout_leaf(account, each) for account in accounts])
            values = RUN_KEY, epoch, self.scene.log.anchored[-1], root, each * ACCOUNTS
            self.chain.call(self.chain.pool, "postRoot", *values, by=self.scene.operator.node)
            self.note("payout root, first" if epoch == 1 else "payout root, later", "postRoot")
            self.skip(DAY_S)
            self.chain.call(self.chain.pool, "claim", RUN_KEY, epoch, accounts[0], each, proof)
            self.note(f"claim among {ACCOUNTS:,}, {'first' if epoch == 1 else 'later'}", "claim")

    def measure_challenge(self) -> None:
        """A root that a quorum of three makes void."""
        self.skip(DAY_S)
        self.scene.log.add(b"more")
        self.scene.log.anchor()
        size, root = self.scene.log.anchored[-1], sha256(b"false root").digest()
        values = RUN_KEY, 4, size, root, 7 * ACCOUNTS
        self.chain.call(self.chain.pool, "postRoot", *values, by=self.scene.operator.node)
        for number, name in enumerate(
            ("challenge, first vote", "challenge, later vote", "challenge that voids a root")
        ):
            judge = key_of(f"judge-{number}").node
            head_root = self.scene.log.tree.root()
            self.chain.call(self.chain.pool, "challenge", RUN_KEY, 4, root, head_root, judge, by=judge)
            self.note(name, "challenge")

    def measure_leaving(self) -> None:
        ann = key_of("ann").node
        self.chain.call(self.chain.vault, "unbond", ann, 100, by=ann)
        self.note("unbond", "unbond")
        self.skip(10 * DAY_S)
        self.chain.call(self.chain.vault, "withdraw", ann, by=ann)
        self.note("withdraw", "withdraw")
        size, root, _ = self.scene.log.head(self.scene.log.anchored[-1], self.scene.log.tree.root())
        lie = self.scene.log.head(size, Digest(sha256(b"lie").digest()))
        self.chain.call(self.chain.log_anchor, "freeze", RUN_KEY, (size, root, b""), lie)
        self.note("freeze a forked log", "freeze")


def tree_of(leaves: list[bytes]) -> tuple[bytes, list[bytes]]:
    """The root over a power of two of leaves, and the first one's proof."""
    proof = []
    while len(leaves) > 1:
        proof.append(leaves[1])
        leaves = [payout_node(left, right) for left, right in zip(leaves[::2], leaves[1::2], strict=True)]
    return leaves[0], proof


def main() -> None:
    parser = BenchmarkParser(__doc__)
    parser.add_size("--entries", 100_000, 500, "entries that the largest anchor covers")
    options = parser.parse()
    if not ANVIL.exists():
        stop_without("anvil is missing: run `npm ci --ignore-scripts` in contracts/", smoke=options.smoke)
    measured = Measured(options.entries)
    try:
        measured.measure()
    except Refused as error:
        raise SystemExit(f"the contracts refused: {error}") from None
    finally:
        measured.chain.stop()
    print("| operation | gas |\n|---|---|")
    for name, gas in measured.rows.items():
        print(f"| {name} | {gas:,} |")
    print_ratio(measured.anchor_gas + measured.rows["payout root, later"])


def print_ratio(epoch_gas: int) -> None:
    epoch_s = SettlementConfig().epoch_ms / 1000
    epochs = math.ceil(ROLLOUTS / STEP_ROLLOUTS * STEP_S / epoch_s)
    ours = epochs * epoch_gas
    rate = f"{STEP_ROLLOUTS:,} in {STEP_S / 60:.0f} min"
    print(f"\n{ROLLOUTS:,} rollouts at {rate} are settled in {epochs} epoch(s) of {epoch_s:.0f} s,")
    print(f"each one anchor and one payout root of {epoch_gas:,} gas: {ours:,} gas, {ours / ROLLOUTS:.0f} a rollout\n")
    print("| one transaction per submission of | gas | times ours |\n|---|---|---|")
    ratios = {}
    for size in (1, GROUP, 4 * GROUP):
        theirs = -(-ROLLOUTS // size) * SUBMIT_WORK_GAS
        ratios[size] = theirs / ours
        print(f"| {size} rollout{'s' * (size > 1)} | {theirs:,} | {ratios[size]:,.0f} |")
    print_result(gas_ratio=f"{ratios[GROUP]:.0f}", per_rollout=f"{ratios[1]:.0f}", epoch_gas=epoch_gas)


if __name__ == "__main__":
    main()
