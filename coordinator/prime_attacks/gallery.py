"""Every attack we know: who makes it, what it does, what must catch it, and what it saves its maker. Pure.

How each is carried out is in the modules beside this one; this is what they are held to.
"""

from dataclasses import dataclass
from enum import StrEnum


class Party(StrEnum):
    """Who attacks."""

    WORKER = "worker"
    VALIDATOR = "validator"
    RELAY = "relay"
    COORDINATOR = "coordinator"


class Verdict(StrEnum):
    """What an attack must come to."""

    REFUSED = "refused"
    """Not taken: no credit, and nothing of it is used. The cheap checks of every file, or the rules of the log."""
    HARD = "hard"
    """Called dishonest by whoever audits it: no credit, and the stake is slashed."""
    SHOWN = "shown"
    """Two signed words contradict each other, or a stranger's replay of the log fails: proof for everybody."""
    OVERRULED = "overruled"
    """What it said does not stand, and is counted against it."""
    HARMLESS = "harmless"
    """Nobody is harmed and the attacker gains nothing; it may stay unnamed."""
    UNSEEN = "unseen"
    """Nothing shows it. The gallery carries it out and measures what it brings; docs/verification.md says it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One entry of the gallery."""

    name: str
    party: Party
    does: str
    """In one sentence."""
    verdict: Verdict
    caught_by: tuple[str, ...]
    """Checks of which one at least must name it: fields of an intake refusal, flaws of an audit, rules."""
    saves: float = 0.0
    """Part of the honest work of a submission, or of an audit, that the attacker is spared."""
    gains: str = ""
    """What else it would bring, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one try came to."""

    verdict: Verdict | None
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


def _worker(name: str, does: str, verdict: Verdict, *caught_by: str, saves: float = 0.0, gains: str = "") -> Attack:
    return Attack(
        name=name, party=Party.WORKER, does=does, verdict=verdict, caught_by=caught_by, saves=saves, gains=gains
    )


PROOFS = ("exponent_mismatches", "mantissa_error_mean", "mantissa_error_median", "sign_mismatches", "noise")
TOKENS = ("margin", "margin_mean")
LOGPROBS = ("logprob_error", "logprob_error_mean")
FORGED = ("decoy_hits", "leading_zeros", "collisions")

ENGINES = (
    _worker(
        "other-model", "runs another model of the same shape", Verdict.HARD, *PROOFS, *TOKENS, *LOGPROBS, saves=0.9
    ),
    _worker(
        "older-checkpoint",
        "runs the checkpoint before",
        Verdict.HARD,
        *PROOFS,
        *TOKENS,
        *LOGPROBS,
        saves=0.1,
        gains="no download",
    ),
    _worker("int8-weights", "weights in 8 bits", Verdict.HARD, *PROOFS, *TOKENS, *LOGPROBS, saves=0.5),
    _worker("int4-weights", "weights in 4 bits", Verdict.HARD, *PROOFS, *TOKENS, *LOGPROBS, saves=0.7),
    _worker("fp8-weights", "weights in 8-bit floats", Verdict.HARD, *PROOFS, *TOKENS, *LOGPROBS, saves=0.5),
    _worker("int8-cache", "keys and values in 8 bits", Verdict.HARD, *PROOFS, *TOKENS, *LOGPROBS, saves=0.3),
    _worker("fp8-cache", "keys and values in 8-bit floats", Verdict.HARD, *PROOFS, *TOKENS, *LOGPROBS, saves=0.3),
    _worker(
        "small-model",
        "half of the layers draw the tokens, the whole model reads them once for true proofs",
        Verdict.HARD,
        *TOKENS,
        saves=0.6,
    ),
    _worker("best-of-n", "draws four times and keeps the likeliest", Verdict.HARD, *TOKENS, gains="better rewards"),
    _worker("other-seed", "draws with noise of its own", Verdict.HARD, *TOKENS, gains="better rewards"),
    _worker("edited-answer", "changes one token of each answer", Verdict.HARD, *TOKENS, gains="better rewards"),
    _worker("answer-sheet", "writes the right answer itself", Verdict.HARD, *TOKENS, saves=0.9, gains="better rewards"),
    _worker("truncated", "ends every completion early", Verdict.HARD, *TOKENS, saves=0.9),
    _worker("padded", "adds tokens before the end", Verdict.HARD, *TOKENS, saves=0.2, gains="paid by the token"),
    _worker("wrong-temperature", "draws at 0.7 of the temperature", Verdict.HARD, *TOKENS, gains="better rewards"),
    _worker("top-k", "draws among the eight likeliest only", Verdict.HARD, *TOKENS, gains="better rewards"),
    _worker(
        "hidden-prompt",
        "answers half of the prompt and names the whole one",
        Verdict.HARD,
        *PROOFS,
        *TOKENS,
        *LOGPROBS,
        saves=0.1,
    ),
    _worker("forged-logprobs", "halves every log-prob", Verdict.HARD, *LOGPROBS, gains="bends what is learnt"),
)
"""Made by the engine of a dishonest owner: prime_devnet.cheats has them, and a live devnet runs them."""

ROWS = (
    _worker("constant-proof", "every proof is one constant", Verdict.HARD, *FORGED, *PROOFS, saves=0.9),
    _worker("low-degree-proof", "a polynomial through 16 likely values", Verdict.HARD, *FORGED, *PROOFS, saves=0.9),
    _worker(
        "dressed-constant-proof",
        "a constant with all 128 coefficients filled in",
        Verdict.HARD,
        *FORGED,
        *PROOFS,
        saves=0.9,
    ),
    _worker(
        "learned-proof",
        "interpolates the indices and values that proofs of other files had most often",
        Verdict.HARD,
        *FORGED,
        *PROOFS,
        saves=0.9,
    ),
    _worker("replayed-proof", "proofs of another completion of the file", Verdict.HARD, *PROOFS, saves=0.9),
    _worker("replayed-step-proof", "proofs of the same slots in another step", Verdict.HARD, *PROOFS, saves=0.9),
    _worker("swapped-chunks", "exchanges two proofs of a completion", Verdict.HARD, *PROOFS),
    _worker("missing-chunk", "leaves the last proof out", Verdict.REFUSED, "proofs", saves=0.1),
    _worker("extra-chunk", "one proof too many", Verdict.REFUSED, "proofs"),
    _worker("edited-prompt", "asks something easier", Verdict.REFUSED, "prompt_tokens", gains="better rewards"),
    _worker("same-edited-prompt", "asks all samples something easier", Verdict.HARD, "prompt", gains="better rewards"),
    _worker("after-the-end", "goes on after the end token", Verdict.HARD, "termination", gains="paid by the token"),
    _worker("cut-for-length", "claims the length limit too early", Verdict.HARD, "termination", saves=0.5),
    _worker("cherry-picked-slots", "answers other slots than leased", Verdict.REFUSED, "slot", gains="easy tasks"),
    _worker("cherry-picked-tasks", "names an easier task for its slot", Verdict.REFUSED, "task", gains="easy tasks"),
    _worker("dropped-samples", "leaves out the samples it does not like", Verdict.REFUSED, "slot"),
    _worker("stated-temperature", "says that it drew cooler", Verdict.REFUSED, "temperature"),
    _worker("forged-rewards", "adds a column of rewards", Verdict.REFUSED, "footer", "file", gains="better rewards"),
    _worker("inflated-count", "claims more tokens than there are", Verdict.REFUSED, "output_tokens", saves=0.5),
    _worker("copied-file", "sends the file of another node", Verdict.REFUSED, "header.node", saves=1.0),
    _worker("copied-rows", "sends another node's rows as its own", Verdict.REFUSED, "slot", saves=1.0),
    _worker("two-leases", "answers two leases with one file", Verdict.REFUSED, "header.lease", saves=1.0),
    _worker("replayed-step", "sends what it made for another step", Verdict.REFUSED, "header.step", saves=1.0),
    _worker("replayed-rows", "sends rows of another step as new", Verdict.REFUSED, "task", saves=1.0),
    _worker("other-checkpoint", "names another checkpoint in the file", Verdict.REFUSED, "header.checkpoint_root"),
)
"""Files that are bent by hand."""

FILES = (
    _worker("bomb-list", "a list that claims 2^40 elements", Verdict.REFUSED, "slot.page_header", "file"),
    _worker("bomb-page", "a page that claims 2^40 bytes", Verdict.REFUSED, "slot"),
    _worker("bomb-footer", "a footer of gigabytes", Verdict.REFUSED, "footer"),
    _worker("huge-file", "more bytes than may be", Verdict.REFUSED, "file"),
    _worker("wrong-type", "floats where integers belong", Verdict.REFUSED, "footer", "output_tokens.page_header"),
    _worker("unknown-token", "a token that the vocabulary lacks", Verdict.REFUSED, "output_tokens"),
    _worker("negative-token", "a token below zero", Verdict.REFUSED, "output_tokens"),
    _worker("not-a-number", "log-probs that are no numbers", Verdict.REFUSED, "output_logprobs"),
    _worker("positive-logprob", "a chance above one", Verdict.REFUSED, "output_logprobs"),
    _worker("broken-modulus", "a proof whose modulus divides by zero", Verdict.HARD, "proofs"),
    _worker("noise", "bytes that are no file", Verdict.REFUSED, "file"),
    _worker("cut-file", "the first half of a file", Verdict.REFUSED, "file"),
)
"""Bytes that attack the reader."""

PROGRAMS = (
    _worker("fork-bomb", "forks without end", Verdict.HARMLESS, "processes", gains="the validator's machine"),
    _worker("daemon", "leaves a process behind", Verdict.HARMLESS, "processes", gains="the validator's machine"),
    _worker("network", "calls home", Verdict.HARMLESS, "network", gains="what the validator can reach"),
    _worker("file-reads", "reads keys and the answers", Verdict.HARMLESS, "files", gains="the validator's key"),
    _worker("memory", "takes all memory", Verdict.HARMLESS, "memory", gains="the validator's machine"),
    _worker("endless-output", "writes without end", Verdict.HARMLESS, "output", gains="the validator's memory"),
    _worker("endless-loop", "never ends and ignores signals", Verdict.HARMLESS, "time", gains="the validator's time"),
    _worker("signals", "kills whom it can reach", Verdict.HARMLESS, "signals", gains="the validator's process"),
    _worker("printed-verdict", "prints that it passed", Verdict.HARMLESS, "result", gains="a reward"),
    _worker("pickle", "answers with a pickle that runs when it is read", Verdict.HARMLESS, "result", gains="a reward"),
)
"""Code answers that attack whoever grades them. The answer earns nothing, and nothing else happens."""

BOOKS = (
    _worker("late", "answers after the deadline", Verdict.REFUSED, "receipt.lease"),
    _worker("backdated", "answers late in an envelope that says it was early", Verdict.REFUSED, "receipt.lease"),
    _worker(
        "copycat",
        "submits the work of others as its own",
        Verdict.REFUSED,
        "header.lease",
        "header.node",
        "rows",
        saves=1.0,
    ),
    _worker(
        "two-keys",
        "waits until another key of its owner gets the late lease's twin, and answers both with one work",
        Verdict.REFUSED,
        "slots",
        saves=0.5,
    ),
    _worker("duplicate", "answers one lease twice, with other bytes", Verdict.REFUSED, "receipt.lease", saves=0.5),
    _worker("swapped-when-drawn", "sends an honest file once it is drawn", Verdict.HARD, "audit", saves=0.9),
    _worker("runs-with-stake", "forges and asks its stake back", Verdict.HARD, "audit", saves=0.9),
    _worker("sleeper", "earns trust, then forges now and then", Verdict.HARD, "audit", saves=0.9),
)
"""Against the log's rules, in the simulator, which runs the coordinator's and the node's own decisions."""


def _other(
    party: Party, name: str, does: str, verdict: Verdict, *caught_by: str, gains: str, saves: float = 0.0
) -> Attack:
    return Attack(name=name, party=party, does=does, verdict=verdict, caught_by=caught_by, saves=saves, gains=gains)


VALIDATORS = (
    _other(
        Party.VALIDATOR,
        "lazy",
        "accepts all without a look",
        Verdict.OVERRULED,
        "looks",
        gains="pay for nothing",
        saves=1.0,
    ),
    _other(Party.VALIDATOR, "vindictive", "rejects all", Verdict.OVERRULED, "score", gains="others lose their stake"),
    _other(
        Party.VALIDATOR,
        "colluding-minority",
        "a fifth pass forgeries and denounce the honest",
        Verdict.OVERRULED,
        "score",
        gains="forged work is paid",
    ),
    _other(
        Party.VALIDATOR,
        "copies-verdicts",
        "says what another has said",
        Verdict.OVERRULED,
        "looks",
        gains="pay for nothing",
        saves=1.0,
    ),
    _other(
        Party.VALIDATOR,
        "leaks-draws",
        "tells a worker that it is drawn, who then sends another file",
        Verdict.HARMLESS,
        "receipt.lease",
        gains="the worker could change its file",
    ),
    _other(Party.VALIDATOR, "silent", "is drawn and never speaks", Verdict.HARMLESS, "rounds", gains="delay"),
)
RELAYS = (
    _other(Party.RELAY, "wrong-bytes", "serves damaged shards", Verdict.REFUSED, "digest", gains="broken weights"),
    _other(Party.RELAY, "stale-version", "serves an older version", Verdict.REFUSED, "digest", gains="old weights"),
    _other(Party.RELAY, "stalls", "takes requests and says nothing", Verdict.REFUSED, "speed", gains="delay"),
    _other(Party.RELAY, "false-claim", "claims shards that it lacks", Verdict.REFUSED, "absent", gains="delay"),
)
COORDINATORS = (
    _other(
        Party.COORDINATOR,
        "two-histories",
        "shows two parties different logs",
        Verdict.SHOWN,
        "consistency",
        gains="pays whom it likes",
    ),
    _other(
        Party.COORDINATOR,
        "reordered-log",
        "exchanges entries",
        Verdict.SHOWN,
        "replay",
        "consistency",
        gains="who came first",
    ),
    _other(
        Party.COORDINATOR,
        "dropped-submission",
        "loses one after it was acknowledged",
        Verdict.SHOWN,
        "consistency",
        gains="unpaid work",
    ),
    _other(
        Party.COORDINATOR,
        "invented-draw",
        "names validators that were not drawn",
        Verdict.SHOWN,
        "replay",
        gains="friends judge friends",
    ),
    _other(
        Party.COORDINATOR,
        "spared-draw",
        "does not draw a newcomer's file",
        Verdict.SHOWN,
        "replay",
        gains="forged work is paid",
    ),
    _other(
        Party.COORDINATOR,
        "back-dated-head",
        "draws from a head before the submission",
        Verdict.SHOWN,
        "replay",
        gains="can try until it likes the draw",
    ),
    _other(
        Party.COORDINATOR,
        "back-dated-entry",
        "logs an entry before the one before it",
        Verdict.SHOWN,
        "replay",
        gains="late work is in time",
    ),
)
GROUND = _other(
    Party.COORDINATOR,
    "ground-draw",
    "tries in private what it may choose before a head until the draw suits it, and publishes that",
    Verdict.UNSEEN,
    gains="a friend's forged work is never audited, or friends judge it",
)
WORKERS = (*ENGINES, *ROWS, *FILES)
ALL = (*WORKERS, *PROGRAMS, *BOOKS, *VALIDATORS, *RELAYS, *COORDINATORS, GROUND)
