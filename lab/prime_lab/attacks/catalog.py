"""Every attack we know: who makes it, what it does, what must catch it, and what it saves its maker. Pure.

How each is carried out is in the modules beside this one; this is what they are held to.
"""

from dataclasses import dataclass
from enum import StrEnum


class Attacker(StrEnum):
    """Who attacks."""

    WORKER = "worker"
    VALIDATOR = "validator"
    RELAY = "relay"
    COORDINATOR = "coordinator"


class AttackVerdict(StrEnum):
    """What an attack must come to."""

    REFUSED = "refused"
    """Not taken: no credit, and nothing of it is used. The cheap checks of every file, or the rules of the log."""
    FRAUDULENT = "hard"
    """Called dishonest by whoever audits it: no credit, and the stake is slashed."""
    PROVEN = "shown"
    """Two signed words contradict each other, or a stranger's replay of the log fails: proof for everybody."""
    OVERRULED = "overruled"
    """What it said does not stand, and is counted against it."""
    HARMLESS = "harmless"
    """Nobody is harmed and the attacker gains nothing; it may stay unnamed."""
    UNDETECTED = "unseen"
    """Nothing shows it. The gallery carries it out and measures what it brings; docs/verification.md says it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One entry of the gallery."""

    name: str
    party: Attacker
    does: str
    """In one sentence."""
    verdict: AttackVerdict
    caught_by: tuple[str, ...]
    """Checks of which one at least must name it: fields of an intake refusal, flaws of an audit, rules."""
    saves: float = 0.0
    """Part of the honest work of a submission, or of an audit, that the attacker is spared."""
    gains: str = ""
    """What else it would bring, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """What one try came to."""

    verdict: AttackVerdict | None
    """None: it went through."""
    checks: tuple[str, ...]
    """What named it."""
    reason: str
    tokens: int = 0
    """Output tokens that were looked at before it was clear; 0 where none were needed."""

    def is_as_listed(self, attack: Attack) -> bool:
        """By the verdict, and by a check that it is listed under; by none where it is listed as unseen."""
        is_named = bool(set(self.checks) & set(attack.caught_by)) if attack.caught_by else not self.checks
        return self.verdict is attack.verdict and is_named


def _make_worker_attack(
    name: str, does: str, verdict: AttackVerdict, *caught_by: str, saves: float = 0.0, gains: str = ""
) -> Attack:
    return Attack(
        name=name, party=Attacker.WORKER, does=does, verdict=verdict, caught_by=caught_by, saves=saves, gains=gains
    )


PROOF_CHECKS = ("exponent_mismatches", "mantissa_error_mean", "mantissa_error_median", "sign_mismatches", "noise")
TOKEN_CHECKS = ("margin", "margin_mean")
LOGPROB_CHECKS = ("logprob_error", "logprob_error_mean")
FORGERY_CHECKS = ("decoy_hits", "leading_zeros", "collisions")

ENGINE_ATTACKS = (
    _make_worker_attack(
        "other-model",
        "runs another model of the same shape",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.9,
    ),
    _make_worker_attack(
        "older-checkpoint",
        "runs the checkpoint before",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.1,
        gains="no download",
    ),
    _make_worker_attack(
        "int8-weights",
        "weights in 8 bits",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.5,
    ),
    _make_worker_attack(
        "int4-weights",
        "weights in 4 bits",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.7,
    ),
    _make_worker_attack(
        "fp8-weights",
        "weights in 8-bit floats",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.5,
    ),
    _make_worker_attack(
        "int8-cache",
        "keys and values in 8 bits",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.3,
    ),
    _make_worker_attack(
        "fp8-cache",
        "keys and values in 8-bit floats",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.3,
    ),
    _make_worker_attack(
        "small-model",
        "half of the layers draw the tokens, the whole model reads them once for true proofs",
        AttackVerdict.FRAUDULENT,
        *TOKEN_CHECKS,
        saves=0.6,
    ),
    _make_worker_attack(
        "best-of-n",
        "draws four times and keeps the likeliest",
        AttackVerdict.FRAUDULENT,
        *TOKEN_CHECKS,
        gains="better rewards",
    ),
    _make_worker_attack(
        "other-seed", "draws with noise of its own", AttackVerdict.FRAUDULENT, *TOKEN_CHECKS, gains="better rewards"
    ),
    _make_worker_attack(
        "edited-answer",
        "changes one token of each answer",
        AttackVerdict.FRAUDULENT,
        *TOKEN_CHECKS,
        gains="better rewards",
    ),
    _make_worker_attack(
        "answer-sheet",
        "writes the right answer itself",
        AttackVerdict.FRAUDULENT,
        *TOKEN_CHECKS,
        saves=0.9,
        gains="better rewards",
    ),
    _make_worker_attack("truncated", "ends every completion early", AttackVerdict.FRAUDULENT, *TOKEN_CHECKS, saves=0.9),
    _make_worker_attack(
        "padded",
        "adds tokens before the end",
        AttackVerdict.FRAUDULENT,
        *TOKEN_CHECKS,
        saves=0.2,
        gains="paid by the token",
    ),
    _make_worker_attack(
        "wrong-temperature",
        "draws at 0.7 of the temperature",
        AttackVerdict.FRAUDULENT,
        *TOKEN_CHECKS,
        gains="better rewards",
    ),
    _make_worker_attack(
        "top-k", "draws among the eight likeliest only", AttackVerdict.FRAUDULENT, *TOKEN_CHECKS, gains="better rewards"
    ),
    _make_worker_attack(
        "hidden-prompt",
        "answers half of the prompt and names the whole one",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        *TOKEN_CHECKS,
        *LOGPROB_CHECKS,
        saves=0.1,
    ),
    _make_worker_attack(
        "forged-logprobs",
        "halves every log-prob",
        AttackVerdict.FRAUDULENT,
        *LOGPROB_CHECKS,
        gains="bends what is learnt",
    ),
)
"""Made by the engine of a dishonest owner: prime_lab.cheats.engines has them, and a live devnet runs them."""

ROW_ATTACKS = (
    _make_worker_attack(
        "constant-proof",
        "every proof is one constant",
        AttackVerdict.FRAUDULENT,
        *FORGERY_CHECKS,
        *PROOF_CHECKS,
        saves=0.9,
    ),
    _make_worker_attack(
        "low-degree-proof",
        "a polynomial through 16 likely values",
        AttackVerdict.FRAUDULENT,
        *FORGERY_CHECKS,
        *PROOF_CHECKS,
        saves=0.9,
    ),
    _make_worker_attack(
        "dressed-constant-proof",
        "a constant with all 128 coefficients filled in",
        AttackVerdict.FRAUDULENT,
        *FORGERY_CHECKS,
        *PROOF_CHECKS,
        saves=0.9,
    ),
    _make_worker_attack(
        "learned-proof",
        "interpolates the indices and values that proofs of other files had most often",
        AttackVerdict.FRAUDULENT,
        *FORGERY_CHECKS,
        *PROOF_CHECKS,
        saves=0.9,
    ),
    _make_worker_attack(
        "replayed-proof", "proofs of another completion of the file", AttackVerdict.FRAUDULENT, *PROOF_CHECKS, saves=0.9
    ),
    _make_worker_attack(
        "replayed-step-proof",
        "proofs of the same slots in another step",
        AttackVerdict.FRAUDULENT,
        *PROOF_CHECKS,
        saves=0.9,
    ),
    _make_worker_attack(
        "swapped-chunks", "exchanges two proofs of a completion", AttackVerdict.FRAUDULENT, *PROOF_CHECKS
    ),
    _make_worker_attack("missing-chunk", "leaves the last proof out", AttackVerdict.REFUSED, "proofs", saves=0.1),
    _make_worker_attack("extra-chunk", "one proof too many", AttackVerdict.REFUSED, "proofs"),
    _make_worker_attack(
        "edited-prompt", "asks something easier", AttackVerdict.REFUSED, "prompt_tokens", gains="better rewards"
    ),
    _make_worker_attack(
        "same-edited-prompt",
        "asks all samples something easier",
        AttackVerdict.FRAUDULENT,
        "prompt",
        gains="better rewards",
    ),
    _make_worker_attack(
        "after-the-end",
        "goes on after the end token",
        AttackVerdict.FRAUDULENT,
        "termination",
        gains="paid by the token",
    ),
    _make_worker_attack(
        "cut-for-length", "claims the length limit too early", AttackVerdict.FRAUDULENT, "termination", saves=0.5
    ),
    _make_worker_attack(
        "cherry-picked-slots", "answers other slots than leased", AttackVerdict.REFUSED, "slot", gains="easy tasks"
    ),
    _make_worker_attack(
        "cherry-picked-tasks", "names an easier task for its slot", AttackVerdict.REFUSED, "task", gains="easy tasks"
    ),
    _make_worker_attack("dropped-samples", "leaves out the samples it does not like", AttackVerdict.REFUSED, "slot"),
    _make_worker_attack("stated-temperature", "says that it drew cooler", AttackVerdict.REFUSED, "temperature"),
    _make_worker_attack(
        "forged-rewards", "adds a column of rewards", AttackVerdict.REFUSED, "footer", "file", gains="better rewards"
    ),
    _make_worker_attack(
        "inflated-count", "claims more tokens than there are", AttackVerdict.REFUSED, "output_tokens", saves=0.5
    ),
    _make_worker_attack(
        "copied-file", "sends the file of another node", AttackVerdict.REFUSED, "header.node", saves=1.0
    ),
    _make_worker_attack(
        "copied-rows", "sends another node's rows as its own", AttackVerdict.REFUSED, "slot", saves=1.0
    ),
    _make_worker_attack(
        "two-leases", "answers two leases with one file", AttackVerdict.REFUSED, "header.lease", saves=1.0
    ),
    _make_worker_attack(
        "replayed-step", "sends what it made for another step", AttackVerdict.REFUSED, "header.step", saves=1.0
    ),
    _make_worker_attack("replayed-rows", "sends rows of another step as new", AttackVerdict.REFUSED, "task", saves=1.0),
    _make_worker_attack(
        "other-checkpoint", "names another checkpoint in the file", AttackVerdict.REFUSED, "header.checkpoint_root"
    ),
)
"""Files that are bent by hand."""

FILE_ATTACKS = (
    _make_worker_attack(
        "bomb-list", "a list that claims 2^40 elements", AttackVerdict.REFUSED, "slot.page_header", "file"
    ),
    _make_worker_attack("bomb-page", "a page that claims 2^40 bytes", AttackVerdict.REFUSED, "slot"),
    _make_worker_attack("bomb-footer", "a footer of gigabytes", AttackVerdict.REFUSED, "footer"),
    _make_worker_attack("huge-file", "more bytes than may be", AttackVerdict.REFUSED, "file"),
    _make_worker_attack(
        "wrong-type", "floats where integers belong", AttackVerdict.REFUSED, "footer", "output_tokens.page_header"
    ),
    _make_worker_attack("unknown-token", "a token that the vocabulary lacks", AttackVerdict.REFUSED, "output_tokens"),
    _make_worker_attack("negative-token", "a token below zero", AttackVerdict.REFUSED, "output_tokens"),
    _make_worker_attack("not-a-number", "log-probs that are no numbers", AttackVerdict.REFUSED, "output_logprobs"),
    _make_worker_attack("positive-logprob", "a chance above one", AttackVerdict.REFUSED, "output_logprobs"),
    _make_worker_attack("broken-modulus", "a proof whose modulus divides by zero", AttackVerdict.FRAUDULENT, "proofs"),
    _make_worker_attack("noise", "bytes that are no file", AttackVerdict.REFUSED, "file"),
    _make_worker_attack("cut-file", "the first half of a file", AttackVerdict.REFUSED, "file"),
)
"""Bytes that attack the reader."""

PROGRAM_ATTACKS = (
    _make_worker_attack(
        "fork-bomb", "forks without end", AttackVerdict.HARMLESS, "processes", gains="the validator's machine"
    ),
    _make_worker_attack(
        "daemon", "leaves a process behind", AttackVerdict.HARMLESS, "processes", gains="the validator's machine"
    ),
    _make_worker_attack(
        "network", "calls home", AttackVerdict.HARMLESS, "network", gains="what the validator can reach"
    ),
    _make_worker_attack(
        "file-reads", "reads keys and the answers", AttackVerdict.HARMLESS, "files", gains="the validator's key"
    ),
    _make_worker_attack(
        "memory", "takes all memory", AttackVerdict.HARMLESS, "memory", gains="the validator's machine"
    ),
    _make_worker_attack(
        "endless-output", "writes without end", AttackVerdict.HARMLESS, "output", gains="the validator's memory"
    ),
    _make_worker_attack(
        "endless-loop", "never ends and ignores signals", AttackVerdict.HARMLESS, "time", gains="the validator's time"
    ),
    _make_worker_attack(
        "signals", "kills whom it can reach", AttackVerdict.HARMLESS, "signals", gains="the validator's process"
    ),
    _make_worker_attack("printed-verdict", "prints that it passed", AttackVerdict.HARMLESS, "result", gains="a reward"),
    _make_worker_attack(
        "pickle", "answers with a pickle that runs when it is read", AttackVerdict.HARMLESS, "result", gains="a reward"
    ),
)
"""Code answers that attack whoever grades them. The answer earns nothing, and nothing else happens."""

LEDGER_ATTACKS = (
    _make_worker_attack("late", "answers after the deadline", AttackVerdict.REFUSED, "receipt.lease"),
    _make_worker_attack(
        "backdated", "answers late in an envelope that says it was early", AttackVerdict.REFUSED, "receipt.lease"
    ),
    _make_worker_attack(
        "copycat",
        "submits the work of others as its own",
        AttackVerdict.REFUSED,
        "header.lease",
        "header.node",
        "rows",
        saves=1.0,
    ),
    _make_worker_attack(
        "two-keys",
        "waits until another key of its owner gets the late lease's twin, and answers both with one work",
        AttackVerdict.REFUSED,
        "slots",
        saves=0.5,
    ),
    _make_worker_attack(
        "duplicate", "answers one lease twice, with other bytes", AttackVerdict.REFUSED, "receipt.lease", saves=0.5
    ),
    _make_worker_attack(
        "swapped-when-drawn", "sends an honest file once it is drawn", AttackVerdict.FRAUDULENT, "audit", saves=0.9
    ),
    _make_worker_attack(
        "runs-with-stake", "forges and asks its stake back", AttackVerdict.FRAUDULENT, "audit", saves=0.9
    ),
    _make_worker_attack(
        "sleeper", "earns trust, then forges now and then", AttackVerdict.FRAUDULENT, "audit", saves=0.9
    ),
)
"""Against the log's rules, in the simulator, which runs the coordinator's and the node's own decisions."""


def _make_attack(
    party: Attacker, name: str, does: str, verdict: AttackVerdict, *caught_by: str, gains: str, saves: float = 0.0
) -> Attack:
    return Attack(name=name, party=party, does=does, verdict=verdict, caught_by=caught_by, saves=saves, gains=gains)


VALIDATOR_ATTACKS = (
    _make_attack(
        Attacker.VALIDATOR,
        "lazy",
        "accepts all without a look",
        AttackVerdict.OVERRULED,
        "looks",
        gains="pay for nothing",
        saves=1.0,
    ),
    _make_attack(
        Attacker.VALIDATOR,
        "vindictive",
        "rejects all",
        AttackVerdict.OVERRULED,
        "score",
        gains="others lose their stake",
    ),
    _make_attack(
        Attacker.VALIDATOR,
        "colluding-minority",
        "a fifth pass forgeries and denounce the honest",
        AttackVerdict.OVERRULED,
        "score",
        gains="forged work is paid",
    ),
    _make_attack(
        Attacker.VALIDATOR,
        "copies-verdicts",
        "says what another has said",
        AttackVerdict.OVERRULED,
        "looks",
        gains="pay for nothing",
        saves=1.0,
    ),
    _make_attack(
        Attacker.VALIDATOR,
        "leaks-draws",
        "tells a worker that it is drawn, who then sends another file",
        AttackVerdict.HARMLESS,
        "receipt.lease",
        gains="the worker could change its file",
    ),
    _make_attack(
        Attacker.VALIDATOR, "silent", "is drawn and never speaks", AttackVerdict.HARMLESS, "rounds", gains="delay"
    ),
)
RELAY_ATTACKS = (
    _make_attack(
        Attacker.RELAY, "wrong-bytes", "serves damaged shards", AttackVerdict.REFUSED, "digest", gains="broken weights"
    ),
    _make_attack(
        Attacker.RELAY, "stale-version", "serves an older version", AttackVerdict.REFUSED, "digest", gains="old weights"
    ),
    _make_attack(
        Attacker.RELAY, "stalls", "takes requests and says nothing", AttackVerdict.REFUSED, "speed", gains="delay"
    ),
    _make_attack(
        Attacker.RELAY, "false-claim", "claims shards that it lacks", AttackVerdict.REFUSED, "absent", gains="delay"
    ),
)
COORDINATOR_ATTACKS = (
    _make_attack(
        Attacker.COORDINATOR,
        "two-histories",
        "shows two parties different logs",
        AttackVerdict.PROVEN,
        "consistency",
        gains="pays whom it likes",
    ),
    _make_attack(
        Attacker.COORDINATOR,
        "reordered-log",
        "exchanges entries",
        AttackVerdict.PROVEN,
        "replay",
        "consistency",
        gains="who came first",
    ),
    _make_attack(
        Attacker.COORDINATOR,
        "dropped-submission",
        "loses one after it was acknowledged",
        AttackVerdict.PROVEN,
        "consistency",
        gains="unpaid work",
    ),
    _make_attack(
        Attacker.COORDINATOR,
        "invented-draw",
        "names validators that were not drawn",
        AttackVerdict.PROVEN,
        "replay",
        gains="friends judge friends",
    ),
    _make_attack(
        Attacker.COORDINATOR,
        "spared-draw",
        "does not draw a newcomer's file",
        AttackVerdict.PROVEN,
        "replay",
        gains="forged work is paid",
    ),
    _make_attack(
        Attacker.COORDINATOR,
        "back-dated-head",
        "draws from a head before the submission",
        AttackVerdict.PROVEN,
        "replay",
        gains="can try until it likes the draw",
    ),
    _make_attack(
        Attacker.COORDINATOR,
        "back-dated-entry",
        "logs an entry before the one before it",
        AttackVerdict.PROVEN,
        "replay",
        gains="late work is in time",
    ),
)
GROUND_DRAW = _make_attack(
    Attacker.COORDINATOR,
    "ground-draw",
    "tries in private what it may choose before a head until the draw suits it, and publishes that",
    AttackVerdict.UNDETECTED,
    gains="a friend's forged work is never audited, or friends judge it",
)
WORKER_ATTACKS = (*ENGINE_ATTACKS, *ROW_ATTACKS, *FILE_ATTACKS)
ALL_ATTACKS = (
    *WORKER_ATTACKS,
    *PROGRAM_ATTACKS,
    *LEDGER_ATTACKS,
    *VALIDATOR_ATTACKS,
    *RELAY_ATTACKS,
    *COORDINATOR_ATTACKS,
    GROUND_DRAW,
)
