"""One training step through the whole protocol, on one machine: `make demo`.

A real (tiny, untrained) transformer generates, real proofs are built and checked, every entry is signed, and the log
that comes out is replayed by `prime-coordinator log verify`. What stands in for the network is this script: it carries
the bytes from one party to the next by function call, and says so at the end.
"""

import asyncio
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from prime_protocol.ledger import entries as e
from prime_protocol.ledger.entries import Outcome, Role
from prime_protocol.ledger.randomness import compute_sample_seed, compute_slot_task
from prime_protocol.ledger.rewards import count_context_tokens
from prime_protocol.ledger.versions.lineage import make_checkpoint_entries
from prime_protocol.log.tree_head import ORIGIN_PREFIX, TreeHead, VerifierKey, sign_tree_head
from prime_protocol.proofs.sampling import sample_tokens
from prime_protocol.proofs.tolerance import ToplocThresholds
from prime_protocol.proofs.toploc import build_proofs, parse_proofs, tensor_to_bits
from prime_protocol.proofs.toploc_verify import find_faults, verify_proofs
from prime_protocol.rollouts.file import read_rollouts, write_rollouts
from prime_protocol.rollouts.rollout import (
    FinishReason,
    Rollout,
    RolloutFile,
    RolloutHeader,
    RolloutLimits,
    compute_rollout_root,
)
from prime_protocol.rollouts.verify import verify_derived_values, verify_header
from prime_protocol.tasks.family import Grade, TaskSetSpec
from prime_protocol.tasks.registry import open_family
from prime_protocol.wire.ids import Digest, NodeId, Sample, Slot, Step
from prime_protocol.wire.typed_data import SubmissionReceipt, compute_receipt_id
from prime_trainer.publish import checkpoint_delta as weights
from support.ledger_network import BUDGET, DAY_MS, RANDOMNESS, RUN, SLASH, TOKEN, World
from support.mirrors import write_mirror
from support.processes.weights_journey import follow_weights
from support.sampling import replay_margin

LETTERS = "0123456789^>$"
EOS = LETTERS.index("$")
TASKS = open_family(TaskSetSpec.parse("sort-digits"))
SLOTS, SAMPLES, OUTPUT_MAX, TEMPERATURE = 2, 4, 40, 1.0
MARGIN_MAX = 0.05
"""Largest loss against the replayed winner that counts as noise. Here both sides run the same software, in float32."""


def say(title: str, *lines: str) -> None:
    print(f"\n{title}")
    for line in lines:
        print(f"    {line}")


def make_model(seed: int) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    shape = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=32, **shape, **heads)).eval()


@torch.no_grad()
def run_model(model: Qwen2ForCausalLM, tokens: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
    """Final hidden states and logits of a batch of equally long sequences."""
    states = model.model(torch.from_numpy(tokens).long()).last_hidden_state
    return states, model.lm_head(states).numpy()


def generate(model: Qwen2ForCausalLM, prompt: np.ndarray, seeds: list[int]) -> list[np.ndarray]:
    """One completion per seed, decoded as a batch."""
    rows = np.repeat(prompt[None], len(seeds), axis=0)
    for position in range(OUTPUT_MAX):
        _, logits = run_model(model, rows)
        places = np.full(len(seeds), position, np.uint32)
        chosen = sample_tokens(logits[:, -1], TEMPERATURE, np.array(seeds, np.uint64), places)
        rows = np.concatenate([rows, chosen[:, None]], axis=1)
    outputs = rows[:, len(prompt) :]
    return [row[: list(row).index(EOS) + 1] if EOS in row else row for row in outputs]


@dataclass(frozen=True)
class Prefill:
    """What one pass over prompt and completion gives about each output token."""

    hidden_bits: np.ndarray
    logits: np.ndarray
    logprobs: np.ndarray


def prefill(model: Qwen2ForCausalLM, prompt: np.ndarray, output: np.ndarray) -> Prefill:
    states, logits = run_model(model, np.concatenate([prompt, output])[None])
    rows = slice(len(prompt) - 1, len(prompt) + len(output) - 1)
    logits = logits[0, rows]
    logprobs = torch.log_softmax(torch.from_numpy(logits) / TEMPERATURE, -1).numpy()[range(len(output)), output]
    return Prefill(tensor_to_bits(states[0, rows].to(torch.bfloat16)), logits, np.minimum(logprobs, 0.0))


def work(model: Qwen2ForCausalLM, beacon: Digest, slots: range, *, cheat: bool) -> list[Rollout]:
    """What a worker does for its slots. The cheater writes the right answer instead of what was sampled."""
    rows = []
    for slot in map(Slot, slots):
        task = TASKS.make(compute_slot_task(beacon, slot, TASKS.size))
        prompt = np.array([LETTERS.index(letter) for letter in task.prompt], np.int32)
        seeds = [compute_sample_seed(beacon, slot, Sample(number)) for number in range(SAMPLES)]
        for number, sampled in enumerate(generate(model, prompt, seeds)):
            answer = np.array([LETTERS.index(letter) for letter in task.key + "$"])
            output = (answer if cheat else sampled).astype(np.int32)
            seen = prefill(model, prompt, output)
            rows.append(
                Rollout(
                    slot=slot,
                    sample=Sample(number),
                    task=task.index,
                    temperature=TEMPERATURE,
                    target_length=None,
                    finish=FinishReason.EOS if output[-1] == EOS else FinishReason.LENGTH,
                    prompt_tokens=prompt,
                    output_tokens=output,
                    output_logprobs=seen.logprobs.astype(np.float32),
                    proofs=build_proofs(seen.hidden_bits).blob,
                )
            )
    return rows


@dataclass(frozen=True)
class Findings:
    """A validator's numbers for one file."""

    margin_max: float
    proof_faults: int
    reward_mean: float

    @property
    def outcome(self) -> Outcome:
        return Outcome.FRAUDULENT if self.margin_max > MARGIN_MAX or self.proof_faults else Outcome.ACCEPT


def audit(model: Qwen2ForCausalLM, file: RolloutFile, beacon: Digest, seed: Digest) -> Findings:
    """Prefill every row, check its proofs, replay its sampling, grade its answer."""
    margins, faults, rewards = [], 0, []
    for row in file.rows:
        seen = prefill(model, row.prompt_tokens, row.output_tokens)
        proofs = parse_proofs(row.proofs, tokens=len(row.output_tokens), hidden=seen.hidden_bits.shape[1])
        faults += len(find_faults(verify_proofs(proofs, seen.hidden_bits, seed=seed), ToplocThresholds()))
        replay_seed = compute_sample_seed(beacon, row.slot, row.sample)
        margins.append(replay_margin(seen.logits, row.output_tokens, replay_seed, 0, TEMPERATURE).max())
        grade = TASKS.grade(TASKS.make(row.task), "".join(LETTERS[token % len(LETTERS)] for token in row.output_tokens))
        assert isinstance(grade, Grade)
        rewards.append(grade.reward)
    return Findings(float(max(margins)), faults, float(np.mean(rewards)))


class Demo:
    """The parties and what each has on its disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World()
        self.log_key = Ed25519PrivateKey.from_private_bytes(sha256(b"demo log key").digest())
        self.origin = f"{ORIGIN_PREFIX}{self.world.ledger.network}"
        self.objects: dict[Digest, bytes] = {}

    def found(self) -> None:
        world = self.world
        vkey = str(VerifierKey.of(self.origin, self.log_key))
        zeros = NodeId(bytes(20))
        at: dict[str, Any] = {"chain_id": 0, "contract": zeros, **RANDOMNESS}
        world.coordinate(e.NetworkCreated(log_key=vkey, unbonding_ms=7 * DAY_MS, **at))
        for name in ("honest", "cheater"):
            world.join(name, Role.WORKER)
        for number in range(4):
            world.join(f"validator-{number}", Role.VALIDATOR)
        world.create_run(
            task_set="sort-digits",
            slots_per_step=2 * SLOTS,
            samples_per_slot=SAMPLES,
            vocabulary=32,
            prompt_tokens_max=16,
            output_tokens_max=OUTPUT_MAX,
            temperature=TEMPERATURE,
        )
        world.deposit("sponsor", 1000 * TOKEN)
        world.write("sponsor", e.RunFunded(amount_nano=1000 * TOKEN))
        say("Identities", *(f"{name:<12} {world.id(name)}" for name in ("coordinator", "trainer", "honest", "cheater")))

    def publish(self, model: Qwen2ForCausalLM, step: int, *trained_on: Digest) -> weights.HashedCheckpoint:
        path = self.folder / f"step-{step}.safetensors"
        save_file({name: tensor.bfloat16().contiguous() for name, tensor in model.model.state_dict().items()}, path)
        checkpoint = weights.open_checkpoint(path, RUN, Step(step))
        digest = Digest(sha256(repr(checkpoint.manifest).encode()).digest())
        root = checkpoint.manifest.root
        entry = make_checkpoint_entries(trained_on, step=Step(step), root=root, manifest=digest)[1]
        self.world.write("trainer", entry)
        self.world.note_head()
        return checkpoint

    def submit(self, name: str, model: Qwen2ForCausalLM, first_slot: int, *, cheat: bool) -> Digest:
        """Lease, generate, write the file, pass intake, log."""
        world = self.world
        lease = world.lease(name, first_slot, SLOTS)
        held, run = world.run.leases[lease], world.run
        checkpoint = run.checkpoints[held.step]
        assert checkpoint.beacon is not None
        rows = work(model, checkpoint.beacon, held.slot_range(), cheat=cheat)
        header = RolloutHeader(
            run=RUN, step=held.step, checkpoint_root=checkpoint.root, lease=lease, node=world.id(name)
        )
        data = write_rollouts(header, rows)
        file = self.take_in(data, header, first_slot, checkpoint.beacon)
        receipt = SubmissionReceipt(
            network=world.ledger.network,
            run=RUN,
            step=held.step,
            lease=lease,
            node=world.id(name),
            checkpoint_root=checkpoint.root,
            file_digest=Digest(sha256(data).digest()),
            rollout_root=compute_rollout_root(file),
        )
        outputs = [len(row.output_tokens) for row in rows]
        context = sum(count_context_tokens(len(row.prompt_tokens), len(row.output_tokens)) for row in rows)
        entry = e.Submitted(
            receipt=receipt,
            signature=world.sign(name, receipt),
            file_bytes=len(data),
            output_tokens=sum(outputs),
            context_tokens=context,
        )
        world.write(name, entry)
        self.objects[compute_receipt_id(receipt)] = data
        proofs = sum(len(row.proofs) for row in rows)
        say(
            f"{name} answers lease {lease}: slots {held.first_slot} to {held.first_slot + SLOTS - 1}",
            f"{len(rows)} rollouts, {sum(outputs)} tokens, {proofs} bytes of proofs, file of {len(data)} bytes",
            f"submission {compute_receipt_id(receipt)}",
        )
        return compute_receipt_id(receipt)

    def take_in(self, data: bytes, header: RolloutHeader, first_slot: int, beacon: Digest) -> RolloutFile:
        """The cheap checks that every file gets."""
        limits = RolloutLimits(
            first_slot=Slot(first_slot),
            slots=SLOTS,
            samples_per_slot=SAMPLES,
            vocab_size=32,
            prompt_tokens_max=16,
            output_tokens_max=OUTPUT_MAX,
        )
        file = read_rollouts(data, limits)
        verify_header(file.header, header)
        verify_derived_values(file, beacon, tasks_total=TASKS.size, target_lengths=(), temperature=TEMPERATURE)
        return file

    def judge(self, name: Digest, model: Qwen2ForCausalLM) -> Outcome:
        """Draw validators; each checks the file for itself and signs what it found."""
        world = self.world
        submission = world.submission(name)
        drawn = world.draw(name)
        seed = submission.rounds[-1].seed
        checkpoint = world.run.checkpoints[submission.step]
        assert checkpoint.beacon is not None
        header = RolloutHeader(
            run=RUN,
            step=submission.step,
            checkpoint_root=checkpoint.root,
            lease=submission.lease,
            node=submission.node,
        )
        file = self.take_in(self.objects[name], header, submission.slots.start, checkpoint.beacon)
        found = audit(model, file, checkpoint.beacon, seed)
        world.give(*[world.opinion(validator, name, found.outcome) for validator in drawn])
        say(
            f"{', '.join(drawn)} are drawn for it",
            f"largest replay margin {found.margin_max:.4f} (limit {MARGIN_MAX}), proof faults {found.proof_faults}, "
            f"mean reward {found.reward_mean:.2f}",
            f"verdict: {found.outcome}",
        )
        return world.settle(name)


def follow_step(demo: Demo) -> None:
    world, old = demo.world, make_model(0)
    demo.found()
    first = demo.publish(old, 0)
    say("Checkpoint 0", f"root {first.manifest.root}", f"beacon {world.run.checkpoints[Step(0)].beacon}")
    honest = demo.submit("honest", old, 0, cheat=False)
    assert demo.judge(honest, old) is Outcome.ACCEPT, "the honest worker must be accepted"
    assert world.submission(honest).credited, "its outcome credits it"
    cheater = demo.submit("cheater", old, SLOTS, cheat=True)
    assert demo.judge(cheater, old) is Outcome.FRAUDULENT, "the cheater must be caught"
    world.propose(cheater)
    world.wait(world.run.terms.appeal_ms)
    world.execute(cheater)
    burned = world.state.funds.burned_nano
    assert burned == SLASH
    say(
        "The appeal window passes; the slash is executed",
        f"{burned / TOKEN:g} tokens of the cheater's stake are burned",
    )
    publish_next(demo, old, first, honest)
    before = world.balance("honest")
    world.pay_out(0)
    earned = world.balance("honest") - before
    assert 0 < earned <= BUDGET
    say("Step 0 is paid out", f"honest earns {earned / TOKEN:g} tokens, the cheater nothing")


def publish_next(demo: Demo, old: Qwen2ForCausalLM, first: weights.HashedCheckpoint, honest: Digest) -> None:
    """A checkpoint that differs in about one value of a hundred, as a delta, proven equal to the full one."""
    new = make_model(0)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter += 0.02 * parameter.abs() * (torch.rand_like(parameter) < 0.01)
    second = demo.publish(new, 1, honest)
    delta = weights.write_delta(first, second, Step(1), demo.folder / "delta")
    patched = demo.folder / "patched.safetensors"
    weights.apply_delta(demo.folder / "step-0.safetensors", demo.folder / "delta", patched, RUN, Step(0))
    assert patched.read_bytes() == (demo.folder / "step-1.safetensors").read_bytes()
    full = second.manifest.transport_bytes
    say(
        "Checkpoint 1 travels as a delta",
        f"{delta.transport_bytes} bytes instead of {full} ({delta.transport_bytes / full:.1%})",
        "the patched copy is bit-exact",
    )


def spread_weights(demo: Demo) -> None:
    """Both checkpoints once more, to nodes that only have sockets in common."""
    checkpoints = []
    for step in range(2):
        folder = demo.folder / "published" / f"step-{step}"
        folder.mkdir(parents=True)
        (demo.folder / f"step-{step}.safetensors").rename(folder / "model.safetensors")
        checkpoints.append(folder)
    lines = asyncio.run(follow_weights(demo.folder / "swarm", checkpoints))
    say("The weights reach the nodes, over HTTP on loopback", *lines)


def check_books(demo: Demo) -> None:
    world, mirror = demo.world, demo.folder / "mirror"
    head = TreeHead(demo.origin, world.state.size, world.state.frontier.root())
    write_mirror(mirror, world.leaves, sign_tree_head(head, demo.log_key))
    key = str(VerifierKey.of(demo.origin, demo.log_key))
    command = [sys.executable, "-m", "prime_coordinator.cli.main", "log", "verify", str(mirror), "--key", key]
    done = subprocess.run(command, capture_output=True, text=True)
    say("prime-coordinator log verify, on a mirror of the log", *done.stdout.splitlines(), *done.stderr.splitlines())
    assert done.returncode == 0


def main() -> int:
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    with tempfile.TemporaryDirectory(prefix="prime-demo-") as name:
        demo = Demo(Path(name))
        follow_step(demo)
        spread_weights(demo)
        check_books(demo)
    say(
        "Real above: model, sampling, proofs, files, signatures, ledger rules, shard transport, offline replay.",
        "Missing until later: the node's engines, the GRPO trainer, the explorer and the contracts.",
        "With processes instead of a script: `prime-coordinator start`, `prime-trainer publish` and `origin`,",
        "`prime-node start --role relay`; see docs/operating.",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
