"""Every known attack: who makes it, what it does, which check must catch it, and what it saves the attacker. Pure.

The other modules of this folder carry the attacks out; this list is what they are held to.
"""

from prime_lab.attacks.attack import Attack, Attacker, AttackVerdict


def _attack(
    party: Attacker, name: str, does: str, verdict: AttackVerdict, *caught_by: str, saves: float = 0.0, gains: str = ""
) -> Attack:
    return Attack(name=name, party=party, does=does, verdict=verdict, caught_by=caught_by, saves=saves, gains=gains)


def _worker(
    name: str, does: str, verdict: AttackVerdict, *caught_by: str, saves: float = 0.0, gains: str = ""
) -> Attack:
    return _attack(Attacker.WORKER, name, does, verdict, *caught_by, saves=saves, gains=gains)


REFUSED, FRAUDULENT, PROVEN, OVERRULED, HARMLESS, UNDETECTED = AttackVerdict
VALIDATOR, RELAY, COORDINATOR = Attacker.VALIDATOR, Attacker.RELAY, Attacker.COORDINATOR
PROOF_CHECKS = ("exponent_mismatches", "mantissa_error_mean", "mantissa_error_median", "sign_mismatches", "noise")
TOKEN_CHECKS = ("margin", "margin_mean", "margin_sum")
LOGPROB_CHECKS = ("logprob_error", "logprob_error_mean")
MODEL_CHECKS = (*PROOF_CHECKS, *TOKEN_CHECKS, *LOGPROB_CHECKS)
FORGED_PROOF_CHECKS = ("decoy_hits", "leading_zeros", "collisions", *PROOF_CHECKS)

ENGINE_ATTACKS = (
    _worker("other-model", "runs another model of the same shape", FRAUDULENT, *MODEL_CHECKS, saves=0.9),
    _worker(
        "older-checkpoint", "runs the checkpoint before", FRAUDULENT, *MODEL_CHECKS, saves=0.1, gains="no download"
    ),
    _worker("int8-weights", "weights in 8 bits", FRAUDULENT, *MODEL_CHECKS, saves=0.5),
    _worker("int4-weights", "weights in 4 bits", FRAUDULENT, *MODEL_CHECKS, saves=0.7),
    _worker("fp8-weights", "weights in 8-bit floats", FRAUDULENT, *MODEL_CHECKS, saves=0.5),
    _worker("int8-cache", "keys and values in 8 bits", FRAUDULENT, *MODEL_CHECKS, saves=0.3),
    _worker("fp8-cache", "keys and values in 8-bit floats", FRAUDULENT, *MODEL_CHECKS, saves=0.3),
    _worker(
        "small-model",
        "half of the layers draw the tokens, the whole model reads them once for true proofs",
        FRAUDULENT,
        *TOKEN_CHECKS,
        saves=0.6,
    ),
    _worker("best-of-n", "draws four times and keeps the likeliest", FRAUDULENT, *TOKEN_CHECKS, gains="better rewards"),
    _worker("other-seed", "draws with noise of its own", FRAUDULENT, *TOKEN_CHECKS, gains="better rewards"),
    _worker("edited-answer", "changes one token of each answer", FRAUDULENT, *TOKEN_CHECKS, gains="better rewards"),
    _worker(
        "answer-sheet", "writes the right answer itself", FRAUDULENT, *TOKEN_CHECKS, saves=0.9, gains="better rewards"
    ),
    _worker("truncated", "ends every completion early", FRAUDULENT, *TOKEN_CHECKS, saves=0.9),
    _worker("padded", "adds tokens before the end", FRAUDULENT, *TOKEN_CHECKS, saves=0.2, gains="paid by the token"),
    _worker("wrong-temperature", "draws at 0.7 of the temperature", FRAUDULENT, *TOKEN_CHECKS, gains="better rewards"),
    _worker("top-k", "draws among the eight likeliest only", FRAUDULENT, *TOKEN_CHECKS, gains="better rewards"),
    _worker(
        "hidden-prompt", "answers half of the prompt and names the whole one", FRAUDULENT, *MODEL_CHECKS, saves=0.1
    ),
    _worker("forged-logprobs", "halves every log-prob", FRAUDULENT, *LOGPROB_CHECKS, gains="bends what is learnt"),
)
"""Run by the engine of a dishonest owner; prime_lab.cheats has the engines, and a devnet runs them live."""

ANSWER_ATTACKS = (
    _worker(
        "selective-answer-sheet",
        "writes the right answer only in the rows where no chunk and no mean of the file is beyond a limit",
        FRAUDULENT,
        "margin_sum",
        gains="better rewards",
    ),
)
CLASS_ATTACKS = (
    _worker(
        "noisier-class",
        "weights in 4 bits, and names a class of engines whose noise might cover them",
        FRAUDULENT,
        *MODEL_CHECKS,
        saves=0.7,
    ),
)
"""In a run that has bounds for pairs of engine classes."""
STEADY_ATTACKS = (
    _worker(
        "careful-answer-sheet",
        "writes the right answer in as many rows as the whole weighing of a file accepts",
        FRAUDULENT,
        "accumulated",
        gains="better rewards",
    ),
    _worker(
        "near-honest",
        "draws at 0.985 of the temperature, so that few files convict by themselves",
        FRAUDULENT,
        "accumulated",
        "margin_sum",
        gains="better rewards",
    ),
)
"""Against the evidence of one file; files follow each other until what they add up to convicts."""

"""Against the weighing of short answers, by a model that knows some of them; with default and calibrated bounds."""

ROW_ATTACKS = (
    _worker("constant-proof", "every proof is one constant", FRAUDULENT, *FORGED_PROOF_CHECKS, saves=0.9),
    _worker("low-degree-proof", "a polynomial through 16 likely values", FRAUDULENT, *FORGED_PROOF_CHECKS, saves=0.9),
    _worker(
        "dressed-constant-proof",
        "a constant with all 128 coefficients filled in",
        FRAUDULENT,
        *FORGED_PROOF_CHECKS,
        saves=0.9,
    ),
    _worker(
        "learned-proof",
        "interpolates the indices and values that proofs of other files had most often",
        FRAUDULENT,
        *FORGED_PROOF_CHECKS,
        saves=0.9,
    ),
    _worker("replayed-proof", "proofs of another completion of the file", FRAUDULENT, *PROOF_CHECKS, saves=0.9),
    _worker("replayed-step-proof", "proofs of the same slots in another step", FRAUDULENT, *PROOF_CHECKS, saves=0.9),
    _worker("swapped-chunks", "exchanges two proofs of a completion", FRAUDULENT, *PROOF_CHECKS),
    _worker("missing-chunk", "leaves the last proof out", REFUSED, "proofs", saves=0.1),
    _worker("extra-chunk", "one proof too many", REFUSED, "proofs"),
    _worker("edited-prompt", "asks something easier", REFUSED, "prompt_tokens", gains="better rewards"),
    _worker("same-edited-prompt", "asks all samples something easier", FRAUDULENT, "prompt", gains="better rewards"),
    _worker("after-the-end", "goes on after the end token", FRAUDULENT, "termination", gains="paid by the token"),
    _worker("cut-for-length", "claims the length limit too early", FRAUDULENT, "termination", saves=0.5),
    _worker("cherry-picked-slots", "answers other slots than leased", REFUSED, "slot", gains="easy tasks"),
    _worker("cherry-picked-tasks", "names an easier task for its slot", REFUSED, "task", gains="easy tasks"),
    _worker("dropped-samples", "leaves out the samples it does not like", REFUSED, "slot"),
    _worker("stated-temperature", "says that it drew cooler", REFUSED, "temperature"),
    _worker("forged-rewards", "adds a column of rewards", REFUSED, "footer", "file", gains="better rewards"),
    _worker("inflated-count", "claims more tokens than there are", REFUSED, "output_tokens", saves=0.5),
    _worker("copied-file", "sends the file of another node", REFUSED, "header.node", saves=1.0),
    _worker("copied-rows", "sends another node's rows as its own", REFUSED, "slot", saves=1.0),
    _worker("two-leases", "answers two leases with one file", REFUSED, "header.lease", saves=1.0),
    _worker("replayed-step", "sends what it made for another step", REFUSED, "header.step", saves=1.0),
    _worker("replayed-rows", "sends rows of another step as new", REFUSED, "task", saves=1.0),
    _worker("other-checkpoint", "names another checkpoint in the file", REFUSED, "header.checkpoint_root"),
)
"""Rollout files with changed rows."""

FILE_ATTACKS = (
    _worker("bomb-list", "a list that claims 2^40 elements", REFUSED, "slot.page_header", "file"),
    _worker("bomb-page", "a page that claims 2^40 bytes", REFUSED, "slot"),
    _worker("bomb-footer", "a footer of gigabytes", REFUSED, "footer"),
    _worker("huge-file", "more bytes than may be", REFUSED, "file"),
    _worker("wrong-type", "floats where integers belong", REFUSED, "footer", "output_tokens.page_header"),
    _worker("unknown-token", "a token that the vocabulary lacks", REFUSED, "output_tokens"),
    _worker("negative-token", "a token below zero", REFUSED, "output_tokens"),
    _worker("not-a-number", "log-probs that are no numbers", REFUSED, "output_logprobs"),
    _worker("positive-logprob", "a chance above one", REFUSED, "output_logprobs"),
    _worker("broken-modulus", "a proof whose modulus divides by zero", FRAUDULENT, "proofs"),
    _worker("noise", "bytes that are no file", REFUSED, "file"),
    _worker("cut-file", "the first half of a file", REFUSED, "file"),
    _worker(
        "over-context", "a row longer than the model's context, which no engine can read", REFUSED, "output_tokens"
    ),
    _worker(
        "big-file",
        "forges the last row of a large file, so that rejecting it takes longer than accepting it",
        FRAUDULENT,
        *LOGPROB_CHECKS,
        gains="its judges run out of time",
    ),
)
"""Files that attack the reader."""

PROGRAM_ATTACKS = (
    _worker("fork-bomb", "forks without end", HARMLESS, "processes", gains="the validator's machine"),
    _worker("daemon", "leaves a process behind", HARMLESS, "processes", gains="the validator's machine"),
    _worker("network", "calls home", HARMLESS, "network", gains="what the validator can reach"),
    _worker("file-reads", "reads keys and the answers", HARMLESS, "files", gains="the validator's key"),
    _worker("memory", "takes all memory", HARMLESS, "memory", gains="the validator's machine"),
    _worker("endless-output", "writes without end", HARMLESS, "output", gains="the validator's memory"),
    _worker("endless-loop", "never ends and ignores signals", HARMLESS, "time", gains="the validator's time"),
    _worker("signals", "kills whom it can reach", HARMLESS, "signals", gains="the validator's process"),
    _worker("printed-verdict", "prints that it passed", HARMLESS, "result", gains="a reward"),
    _worker("pickle", "answers with a pickle that runs when it is read", HARMLESS, "result", gains="a reward"),
)
"""Code answers that attack the machine that grades them. The answer earns nothing, and nothing else happens."""

LEDGER_ATTACKS = (
    _worker("late", "answers after the deadline", REFUSED, "receipt.lease"),
    _worker("backdated", "answers late in an envelope that says it was early", REFUSED, "receipt.lease"),
    _worker(
        "copycat", "submits the work of others as its own", REFUSED, "header.lease", "header.node", "rows", saves=1.0
    ),
    _worker(
        "two-keys",
        "waits until another key of its owner gets the late lease's twin, and answers both with one work",
        REFUSED,
        "slots",
        saves=0.5,
    ),
    _worker("duplicate", "answers one lease twice, with other bytes", REFUSED, "receipt.lease", saves=0.5),
    _worker("swapped-when-drawn", "sends an honest file once it is drawn", FRAUDULENT, "audit", saves=0.9),
    _worker("runs-with-stake", "forges and asks its stake back", FRAUDULENT, "audit", saves=0.9),
    _worker("sleeper", "earns trust, then forges now and then", FRAUDULENT, "audit", saves=0.9),
    _worker(
        "worker-ground-draw",
        "earns trust, then forges, and sends of many files the one that the last known randomness would spare",
        FRAUDULENT,
        "audit",
        saves=0.9,
    ),
)
"""Against the ledger's rules, in the simulator, which runs the coordinator's and the node's own decisions."""

VALIDATOR_ATTACKS = (
    _attack(
        VALIDATOR,
        "lazy",
        "accepts every file without reading it",
        OVERRULED,
        "read_proof",
        gains="pay for nothing",
        saves=1.0,
    ),
    _attack(VALIDATOR, "vindictive", "rejects all", OVERRULED, "score", gains="others lose their stake"),
    _attack(
        VALIDATOR,
        "colluding-minority",
        "a fifth pass forgeries and denounce the honest",
        OVERRULED,
        "score",
        gains="forged work is paid",
    ),
    _attack(
        VALIDATOR,
        "copies-verdicts",
        "says what a round before has said",
        OVERRULED,
        "read_proof",
        gains="pay for nothing",
        saves=1.0,
    ),
    _attack(
        VALIDATOR,
        "copied-verdict",
        "waits until it can read another verdict of its round, and gives the same",
        REFUSED,
        "commitment",
        gains="pay for nothing",
    ),
    _attack(
        VALIDATOR,
        "starved-victim",
        "a third call the files of one worker fraudulent",
        OVERRULED,
        "penalty_nano",
        gains="the worker is not paid",
    ),
    _attack(
        VALIDATOR, "denied-victim", "a third call one worker's files invalid", OVERRULED, "score", gains="no pay for it"
    ),
    _attack(VALIDATOR, "withheld-verdict", "speaks only if its lie wins", HARMLESS, "rounds", gains="free lies"),
    _attack(
        VALIDATOR,
        "leaks-draws",
        "tells a worker that it is drawn, who then sends another file",
        HARMLESS,
        "receipt.lease",
        gains="the worker could change its file",
    ),
    _attack(VALIDATOR, "silent", "is drawn and never speaks", HARMLESS, "rounds", gains="delay"),
)

JUDGEMENT_ATTACKS = (
    _worker(
        "found-after-the-draw", "forges a file that is not drawn, and is credited", FRAUDULENT, "finding", saves=0.9
    ),
    _attack(
        Attacker.STRANGER,
        "false-finding",
        "files findings about honest files",
        OVERRULED,
        "finding",
        gains="holds back the pay of others",
    ),
    _attack(
        VALIDATOR,
        "revoked-owner-draw",
        "leaves its owner once a worker of the same owner has a lease, and stakes by itself",
        HARMLESS,
        "owner",
        gains="judges the files of its own owner",
    ),
    _worker("disowned-worker", "is disowned before it is drawn", HARMLESS, "owner", gains="its owner judges it"),
    _attack(
        VALIDATOR,
        "late-candidate",
        "joins when the round of a draw is published, so that it or an accomplice is drawn",
        HARMLESS,
        "candidates",
        gains="judges the files of an accomplice",
    ),
    _attack(COORDINATOR, "suspended-candidate", "suspends who would judge", HARMLESS, "candidates", gains="its choice"),
)
"""About who may be judged again and who judges, in the simulator."""

RELAY_ATTACKS = (
    _attack(RELAY, "wrong-bytes", "serves damaged shards", REFUSED, "digest", gains="broken weights"),
    _attack(RELAY, "stale-version", "serves an older version", REFUSED, "digest", gains="old weights"),
    _attack(RELAY, "stalls", "takes requests and says nothing", REFUSED, "speed", gains="delay"),
    _attack(RELAY, "false-claim", "claims shards that it lacks", REFUSED, "absent", gains="delay"),
    _attack(
        RELAY, "wrong-lane", "sends damaged shards by a lane that it opens", REFUSED, "digest", gains="broken weights"
    ),
)

COORDINATOR_ATTACKS = (
    _attack(
        COORDINATOR,
        "two-histories",
        "shows two parties different logs",
        PROVEN,
        "consistency",
        gains="pays whom it likes",
    ),
    _attack(COORDINATOR, "reordered-log", "exchanges entries", PROVEN, "replay", "consistency", gains="who came first"),
    _attack(
        COORDINATOR,
        "dropped-submission",
        "loses one after it was acknowledged",
        PROVEN,
        "consistency",
        gains="unpaid work",
    ),
    _attack(
        COORDINATOR,
        "invented-draw",
        "names validators that were not drawn",
        PROVEN,
        "replay",
        gains="friends judge friends",
    ),
    _attack(
        COORDINATOR, "spared-draw", "does not draw a newcomer's file", PROVEN, "replay", gains="forged work is paid"
    ),
    _attack(
        COORDINATOR,
        "back-dated-head",
        "draws from a round before the one that the head fixes",
        PROVEN,
        "replay",
        gains="can try until it likes the draw",
    ),
    _attack(
        COORDINATOR, "back-dated-entry", "logs an entry before the last", PROVEN, "replay", gains="late work is in time"
    ),
)
HOSTILE_TOKENIZER = _attack(
    Attacker.TRAINER,
    "hostile-tokenizer",
    "publishes a tokenizer.json that panics, takes all memory, never ends, or is nested without end",
    HARMLESS,
    "tokenizer process",
    gains="every node's process",
)
GROUND_DRAW = _attack(
    COORDINATOR,
    "ground-draw",
    "knows every round, and rewrites the entries before a head in private until the draw suits it",
    PROVEN,
    "replay",
    gains="a friend's forged work is never audited, or friends judge it",
)
BACKDATED_ENTRY = _attack(
    COORDINATOR,
    "backdated-entry",
    "sees a round, and puts a friend's submission before the head that the round belongs to",
    PROVEN,
    "replay",
    gains="a friend's forged work is never audited",
)
SMUGGLED_CREDIT = _attack(
    COORDINATOR, "smuggled-credit", "credits a drawn file among spared ones", PROVEN, "replay", gains="forged work paid"
)
BROKEN_RULE = _attack(
    COORDINATOR, "broken-rule", "credits a submission that was not judged", PROVEN, "ledger follower", gains="free pay"
)
WRONG_CLOCK = _attack(
    COORDINATOR,
    "wrong-clock",
    "writes an entry with a time that lies an hour ahead",
    REFUSED,
    "ledger follower",
    gains="deadlines pass and stake is released when it likes",
)
SUDDEN_RULES = _attack(
    COORDINATOR, "sudden-rules", "changes the rules without notice", PROVEN, "ledger follower", gains="nodes stop"
)
EXPIRED_EVIDENCE = _attack(
    VALIDATOR,
    "expired-evidence",
    "names the file of an open finding in a step that ends sooner, so that it is deleted before it is judged",
    HARMLESS,
    "file_holds",
    gains="a forged file that no one can read again",
)
FALSE_RESTORE = _attack(
    COORDINATOR, "false-restore", "drops entries and says its disk was lost", PROVEN, "consistency", gains="unpaid work"
)
KEY_ATTACKS = (
    _attack(COORDINATOR, "old-key-head", "signs a head with a rotated key", REFUSED, "log keys", gains="a fork"),
    _attack(COORDINATOR, "self-rotated-key", "rotates one of two keys alone", PROVEN, "replay", gains="the log"),
)
STRANGER_ATTACKS = (
    _attack(
        Attacker.STRANGER,
        "log-flood",
        "64 free keys, and new ones without end, register, delegate and revoke all day from 64 networks",
        REFUSED,
        "Payload.sender",
        gains="a log that others must store and replay",
    ),
    _attack(
        Attacker.STRANGER,
        "spoiler-entries",
        "a free key registers differently until the next tree root suits it",
        REFUSED,
        "Payload.sender",
        gains="a say in what is drawn from a root",
    ),
)
GOSSIP_ATTACKS = (
    _attack(
        Attacker.STRANGER,
        "eclipse",
        "names hundreds of its keys as peers, at the addresses of one provider",
        REFUSED,
        "address_range",
        gains="a node that hears only the attacker",
    ),
    _attack(
        Attacker.STRANGER,
        "crowded-bootstrap",
        "registers many nodes of one owner, so that the coordinator names them to newcomers",
        REFUSED,
        "owner",
        gains="newcomers that know only the attacker",
    ),
    _attack(
        Attacker.STRANGER,
        "record-flood",
        "sends valid serving records of fresh keys without end",
        REFUSED,
        "budget",
        gains="CPU of every node of the run",
    ),
)
"""Against gossip over libp2p, at the decisions of a node and of the coordinator."""
CROSS_RUN = _worker(
    "cross-run-reputation",
    "earns a good name in a cheap run and takes it to an expensive one",
    HARMLESS,
    "audit_rate",
    gains="fewer audits where work is dear",
)
WORKER_ATTACKS = (
    *ENGINE_ATTACKS,
    *ANSWER_ATTACKS,
    *STEADY_ATTACKS,
    *CLASS_ATTACKS,
    *ROW_ATTACKS,
    *FILE_ATTACKS,
)
ALL_ATTACKS = (
    *WORKER_ATTACKS,
    *PROGRAM_ATTACKS,
    *LEDGER_ATTACKS,
    CROSS_RUN,
    *VALIDATOR_ATTACKS,
    *JUDGEMENT_ATTACKS,
    *RELAY_ATTACKS,
    HOSTILE_TOKENIZER,
    *COORDINATOR_ATTACKS,
    GROUND_DRAW,
    BACKDATED_ENTRY,
    SMUGGLED_CREDIT,
    BROKEN_RULE,
    WRONG_CLOCK,
    SUDDEN_RULES,
    FALSE_RESTORE,
    EXPIRED_EVIDENCE,
    *KEY_ATTACKS,
    *STRANGER_ATTACKS,
    *GOSSIP_ATTACKS,
)
