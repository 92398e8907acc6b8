"""Every number the network agrees on: its unit (last in the name), its limit and the reason for it.

Nothing is computed here but relations between the numbers, which are asserted at the end of each section.
"""


# --- Versions -------------------------------------------------------------------------------------------------------

PROTOCOL_VERSION = 3
"""Newest version that this package speaks: of messages, of entries and of the log's rules. A run names the lowest one
it accepts. docs/decisions/0015-versioned-rules.md says what each version brings."""

PROTOCOL_VERSION_MIN = 1
"""Oldest version whose messages and entries this package reads. It never rises: old logs stay readable."""

RULES_VERSION_MAX = 2**16
"""Highest version of the rules that an entry may name."""

RULES_NOTICE_MS = 14 * 24 * 3_600_000
"""Least time between the announcement of new rules and their start: two weekends for a contributor to upgrade."""

RULES_NOTICE_MS_MAX = 366 * 24 * 3_600_000
"""Longest notice that a network can fix for itself, and most time before an announced change starts: longer ones would
keep every other change waiting."""

RELEASE_CHARS_MAX = 32
"""Longest name of a release, as in `1.12.0rc1`."""

assert PROTOCOL_VERSION_MIN <= PROTOCOL_VERSION < RULES_VERSION_MAX
assert RULES_NOTICE_MS < RULES_NOTICE_MS_MAX

# --- Identity -------------------------------------------------------------------------------------------------------

ADDRESS_BYTES = 20
DIGEST_BYTES = 32
SIGNATURE_BYTES = 65
"""secp256k1 r, s and the recovery id: what an Ethereum contract can check."""

NAME_CHARS_MAX = 40
"""Longest network or run name. Fits a DNS label and a narrow terminal column."""

TICKER_CHARS_MAX = 12
"""Longest name of a network's unit of value."""

KEYSTORE_BYTES_MAX = 16_384
"""An honest keystore file has about 600 bytes."""

KEYSTORE_SCRYPT_N = 2**17
"""Cost of guessing one password: 128 MiB and about 0.4 s. The wallets' usual 2^18 needs 256 MiB, too much for a relay
on a small machine."""

KEYSTORE_SCRYPT_MEMORY_BYTES_MAX = 2**30
KEYSTORE_PBKDF2_ROUNDS_MAX = 10_000_000
"""Bounds on a keystore written elsewhere: reading it must not take the machine down."""

assert 128 * 8 * KEYSTORE_SCRYPT_N <= KEYSTORE_SCRYPT_MEMORY_BYTES_MAX

# --- Codec ----------------------------------------------------------------------------------------------------------

FRAME_BYTES_MAX = 4 * 2**20
"""Largest message read, but for manifests, which have a limit of their own."""

TEXT_CHARS_MAX = 1024
"""Longest string field that names no bound of its own."""

ITEMS_MAX = 2**17
"""Most items in one list that names no bound of its own."""

JSON_DEPTH_MAX = 64
"""Deepest nesting of JSON that is read. Honest headers need 3, answers of programs rarely 5."""

DEPTH_MAX = 8
"""Deepest nesting of a message type, checked when the type is first used. No type here needs more than 4."""

# --- Envelope -------------------------------------------------------------------------------------------------------

KIND_CHARS_MAX = 48

ENVELOPE_LIFE_MS_MAX = 300_000
"""Longest time between now and an envelope's expiry. Five minutes forgive a slow upload, not a stolen message."""

CLOCK_SKEW_MS_MAX = 30_000
"""How far a sender's clock may be ahead. A machine with NTP stays under 100 ms; one without drifts seconds a day."""

REPLAY_ENTRIES_MAX = 4_000_000
"""Most live envelopes remembered in all: about 1 GB, or 100,000 nodes at 40 requests in five minutes."""

REPLAY_SENDER_ENTRIES_MAX = 4096
"""Most live envelopes remembered for one sender; past it the sender is refused, so one key cannot fill the memory."""

DELEGATION_LIFE_MS_MAX = 366 * 24 * 3_600_000
"""Longest life of an owner's delegation to a node key: a year, then the owner signs anew."""

assert CLOCK_SKEW_MS_MAX < ENVELOPE_LIFE_MS_MAX, "an envelope from a clock that runs behind must still have life left"

# --- Requests and replies -------------------------------------------------------------------------------------------

REPLY_LIFE_MS = 60_000
"""Life of a reply's envelope. A reply is bound to its request and not to a time, so this only has to be a valid one."""

PROBLEM_CHARS_MAX = 500
"""Longest field path or sentence in a refusal."""

assert REPLY_LIFE_MS <= ENVELOPE_LIFE_MS_MAX, "a reply is an envelope"

# --- TOPLOC ---------------------------------------------------------------------------------------------------------

TOPLOC_CHUNK_TOKENS = 32
"""Tokens covered by one proof. The last chunk of a completion may be shorter."""

TOPLOC_K = 128
"""Activations covered by one proof: the largest magnitudes of the chunk. A chunk with fewer values is covered whole."""

TOPLOC_PRIME = 65_497
"""The field of the polynomials: a prime below 2^16 and above 0xff7f, the largest finite bf16 pattern."""

TOPLOC_MODULUS_MIN = 2**15
"""Smallest modulus of a proof. A small one would let few points stand for many indices."""

TOPLOC_PROOF_BYTES = 258
"""One proof: a modulus and 128 coefficients, two bytes each; a tail with fewer values leaves the highest ones zero."""

TOPLOC_TOKENS_MAX = 2**20
"""Longest completion with proofs: 8.1 MiB of them. Models in use stop at 2^17 to 2^20."""

TOPLOC_HIDDEN_MIN = 16
TOPLOC_HIDDEN_MAX = 2**16
"""Width of the hidden state. One token must give a polynomial whose degree is worth testing; indices fit 32 bits."""

TOPLOC_DECOYS = 64
"""Points outside the top k at which a proof is evaluated too. A forger that hits the exponents of 70 % of unknown top-k
indices hits decoys as often; with up to 12 exponents seen, it survives a chunk with a chance below 1e-9."""

TOPLOC_DECOY_DRAWS = 128
"""Draws from which the decoys are taken. At most 19 % (192 of 1024 points) are unusable, so half of them suffice."""

TOPLOC_DECOY_RANGE_MIN = 1024
"""Decoys are drawn from the chunk's indices, or from this many where the chunk has too few outside the top k."""

TOPLOC_FALSE_REJECTION = 1e-12
"""Chance that the decoy limit refuses one honest chunk. A large run has 1e9 chunks."""

TOPLOC_LEADING_ZEROS_MAX = 2
"""Highest coefficients that may be zero. Honest ones are zero with chance 1/65497 each: three with 4e-15."""

TOPLOC_COLLISIONS_MAX = 8
"""Verifier's indices that may fall together under the proof's modulus. None do if both sides picked the same indices;
each foreign one does with chance 128/65497, so nine among 38 with 7e-17."""

TOPLOC_EXPONENT_MISMATCHES_MAX = 38
TOPLOC_MANTISSA_ERROR_MEAN_MAX = 10.0
TOPLOC_MANTISSA_ERROR_MEDIAN_MAX = 8
"""Default tolerance per 128 values: the TOPLOC paper's for bf16, which held across GPU types, kernels and tensor
parallelism without a false verdict. A run on one kind of machine should calibrate tighter ones: CPU workers in bf16
stayed below 5 mismatches and a mean of 1."""

TOPLOC_SIGN_MISMATCHES_MAX = 8
"""Values with the right exponent and the wrong sign. Noise does not flip the sign of a large value. A foreign index
matches one of 12 exponents by chance in under 5 % of cases, half of them with the wrong sign: one among 38."""

MARGIN_MAX = 1.0
MARGIN_MEAN_MAX = 0.01
"""Default bounds of the sampling margin: of one token, and the mean of a file. An honest bf16 model of 135 million
parameters stayed below 0.16 and 0.0016; decoding at temperature 0.9 instead of 1 gave a mean of 0.019."""

LOGPROB_ERROR_MAX = 1.0
LOGPROB_ERROR_MEAN_MAX = 0.15
"""Default bounds of the difference of log-probabilities. A tiny model in bf16 on two engines differed by 0.0074; one of
135 million parameters by 0.34 at most, and by 0.06 on average over 32 tokens."""

EXPONENT_MISMATCHES_USUAL = 12
MANTISSA_ERROR_MEAN_USUAL = 3.0
MARGIN_USUAL = 0.4
MARGIN_MEAN_USUAL = 0.03
LOGPROB_ERROR_USUAL = 0.7
LOGPROB_ERROR_MEAN_USUAL = 0.12
"""Default bounds of what is usual in a chunk of 32 tokens: of honest chunks all but one in 300 should be below each.
Twice the largest of 64 chunks of a model of 135 million parameters in bf16 (6, 1.4, 0.12, 0.010, 0.34, 0.062), so that
a run that was not calibrated convicts no node; one that was has its own."""

EVIDENCE_USUAL = -1
EVIDENCE_UNUSUAL = 10
EVIDENCE_BEYOND_LIMIT = 50
EVIDENCE_FRAUDULENT = 120
"""What a chunk weighs against its author, in tenths of a power of ten: usual, unusual, beyond a limit; and the sum that
convicts. Honest chunks are unusual in at most 2 % and beyond a limit in 1e-8 of cases, so a chunk multiplies what there
is against its author by less than 1 on average: 10^-0.1 * 0.98 + 10 * 0.02 + 10^5 * 1e-8. Then, from whichever chunk
one begins to count, 10^12 is reached with a chance of 1e-12."""

NOISE_TYPICAL = 1.0
NOISE_SPREAD = 0.5
NOISE_SPREAD_CHUNK = 0.5
"""Default noise of an honest completion, as a multiple of what the reader's own reading in bfloat16 has on the same
tokens, and how far completions spread around it, of any length and for each chunk. Measured were 1.00, 0.02 and 0.09 on
one machine; kinds of GPU round at other places, so a run that was not calibrated sees only what is twice as noisy."""

NOISE_DIVISOR_MIN = 1e-4
"""Least value of each of these, as they are divided by."""

OWN_LOGPROB_ERROR_MIN = 1e-5
OWN_MANTISSA_ERROR_MIN = 0.05
"""Least mean errors of the reader's own reading that a completion's are compared with. bfloat16 gives a hundred and ten
times as much; below it one is as good as exact, and a ratio says nothing."""

NOISE_SHIFT = 2.0
"""How many standard deviations noisier than typical a completion is weighed against: the bet that wins most if it is
so. Eight completions that are 2.7 noisier convict; an 8-bit cache makes them about ten noisier in bfloat16. A larger
shift would rest on honest completions too rare for a calibration to see: with 2, on the ones that one in 44 is."""

EVIDENCE_NOISE_MAX = 50
"""Most that a completion weighs by its noise, either way, in tenths of a power of ten: it takes three to convict."""

CLASSES_MAX = 16
"""Engine classes with bounds of their own in one run. All 256 pairs are 53 kB, so the terms fit an entry of the log."""
CLASS_CHARS_MAX = 100
"""Length of a class: a GPU's name, an engine with its version, an attention backend, a precision and a size."""
CLASS_BOUNDS_RULES = 3
"""From these rules on, terms have a table of bounds by pair of classes."""

MARGIN_RATE = 0.04
MARGIN_SCALE = 0.05
"""Default noise of replayed draws: how many tokens of an honest completion lose against the replayed winner, and the
mean of the exponential distribution that bounds by how much. Tiny models in bf16 measured 0.002 to 0.005 and 0.009, and
no margin above 0.042 among 115,000 tokens. These are loose, for a run that was not calibrated: together they allow a
mean margin of 0.002, where a model of 135 million parameters had 0.0016."""

MARGIN_RATE_MIN, MARGIN_RATE_MAX = 1e-6, 0.5
MARGIN_SCALE_MIN = 1e-6
"""Bounds of both in a run's terms."""

MARGIN_BETS = ((2.0, 0.0), (1.25, 0.3), (1.0, 0.9), (4.0, 0.5), (16.0, 0.95))
"""Dishonest work that margins are weighed against: how many times more tokens lose, and how much of the exponential
decay of their margins is missing. Twice as many that lose by no more; slightly more by slightly more; as many by ten
times as much, which is what few edits look like where bounds are loose; four times as many by twice as much; and
answers of which somebody chose every token. No bet is on more tokens that lose than MARGIN_RATE_MAX."""

EDITED_SHARE = 0.1
"""Part of the completions that the test of single completions takes to be edited: an honest one costs it 0.05 powers of
ten, so edits in few rows of a file still add up."""

EVIDENCE_MARGIN_MAX = 30
"""Most that a completion weighs by its margins under one bet, either way, in tenths of a power of ten: no more than a
calibration with a few thousand completions can verify. It takes three for a file to be invalid and five to convict."""

EVIDENCE_UNLIKELY = 80
"""The sum from which a file is invalid: not paid, and not fraudulent. Honest noise reaches it with a chance of 1e-8
from each chunk or completion on."""

EVIDENCE_BETS = len(MARGIN_BETS) + 1
"""Sums that a verdict carries and the ledger adds up: of each bet on margins, and of the noise of completions."""

BET_WEIGHT_MAX = 10_000
"""Largest sum that a verdict may state, either way, in tenths of a power of ten."""

EVIDENCE_FILE_MAX = 50
"""Most that one file adds to what is known of its node in a run, either way: one file, or validators that lie about
one, never hold a node's pay, and a conviction takes three."""

SUSPICION_AUDITED = 30
SUSPICION_HELD = 60
SUSPICION_CONVICTED = 150
"""What a node's files in a run come to, in tenths of a power of ten, before all of them are audited, its pay is held,
and it is convicted. Honest noise inside the calibrated bounds starts a sum that gets there with a chance of 1e-3, 1e-6
and 1e-15 for each audited file and bet: below 1e-9 for a conviction in a hundred thousand files. Pay is held until the
sum is below SUSPICION_AUDITED again."""

FAR_BEYOND_FACTOR = 4
"""A number this many times its limit is not noise: a tail with 1e-9 beyond the limit has 1e-36 beyond this."""

TOLERANCE_NUMBER_MAX = 100.0
"""A larger bound would allow everything: no margin between tokens of a model is that wide."""

assert (
    10 ** (EVIDENCE_USUAL / 10) * 0.98
    + 10 ** (EVIDENCE_UNUSUAL / 10) * 0.02
    + 10 ** (EVIDENCE_BEYOND_LIMIT / 10) * 1e-8
    < 1
)
assert EVIDENCE_BEYOND_LIMIT + 6 * EVIDENCE_UNUSUAL < EVIDENCE_FRAUDULENT, (
    "one unlucky chunk among a few unusual ones does not convict"
)
assert 2 * EVIDENCE_NOISE_MAX < EVIDENCE_FRAUDULENT, "two noisy completions do not convict"
assert 3 * EVIDENCE_MARGIN_MAX < EVIDENCE_FRAUDULENT, "three completions with unlikely margins do not convict"
assert EVIDENCE_BEYOND_LIMIT < EVIDENCE_UNLIKELY < EVIDENCE_FRAUDULENT, "one unlucky chunk is paid"
assert EVIDENCE_FILE_MAX < SUSPICION_HELD < 2 * EVIDENCE_FILE_MAX, "no single file holds anybody's pay"
assert 2 * EVIDENCE_FILE_MAX < SUSPICION_CONVICTED <= 3 * EVIDENCE_FILE_MAX
assert SUSPICION_AUDITED < SUSPICION_HELD < SUSPICION_CONVICTED, "audits come first, a conviction last"
assert all(rate >= 1 and 0 <= tilt < 1 for rate, tilt in MARGIN_BETS), (
    "a bet wins most on what honest noise makes least"
)
assert TOPLOC_PROOF_BYTES == 2 + 2 * TOPLOC_K
assert 0xFF7F < TOPLOC_PRIME < 2**16
assert TOPLOC_MODULUS_MIN > TOPLOC_K + TOPLOC_DECOYS + TOPLOC_DECOY_DRAWS, "there must always be enough free points"
assert TOPLOC_CHUNK_TOKENS * TOPLOC_HIDDEN_MIN >= TOPLOC_K, "only a short tail may cover fewer than k values"
assert TOPLOC_CHUNK_TOKENS * TOPLOC_HIDDEN_MAX <= 2**32
assert TOPLOC_DECOY_DRAWS >= 2 * TOPLOC_DECOYS

# --- Sampling and the beacon ----------------------------------------------------------------------------------------

PERMUTATION_SIZE_MAX = 2**40
"""Most tasks in a task set, and most candidates of a draw. Far above any data set; keeps the halves under 21 bits."""

FEISTEL_ROUNDS = 16
"""Feistel rounds. At size 5, the worst, the images of two indices are 10 sigma from even after 8 rounds (6,000 keys),
4 sigma after 12 (40,000 keys), and even after 16. They cost about 30 us."""

SLOTS_MAX = 2**32
"""Most slots in a step. Slots are hashed as 64 bits, so this may grow."""

SAMPLES_MAX = 1024
"""Most samples in a slot. Runs of this kind use 8 to 64."""

TARGET_LENGTHS_MAX = 64
"""Most target lengths a run may choose from. The public run had five."""

POSITIONS_MAX = 2**32
"""Positions of a completion are hashed as 32 bits."""

VOCAB_SIZE_MAX = 2**20
"""Largest vocabulary. The largest in use is about 262,000."""

TEMPERATURE_MIN = 0.001
TEMPERATURE_MAX = 100.0
"""Range of sampling temperatures other than 0, which is greedy. Outside it, logits over temperature say nothing."""

assert PERMUTATION_SIZE_MAX >= SLOTS_MAX, "a task set may be as large as a step"
assert VOCAB_SIZE_MAX < 2**31, "a token id is an int32 in the rollout file"

# --- Merkle log and tree heads --------------------------------------------------------------------------------------

LOG_ENTRIES_MAX = 2**63 - 1
"""Largest tree size. A signed 64-bit integer: what SQLite, Go and Solidity clients can all hold."""

PROOF_HASHES_MAX = 64
"""Longest inclusion or consistency proof. A consistency proof is at most one hash longer than the tree is high."""

TILE_HEIGHT = 8
"""Tree levels in one tile, fixed by c2sp.org/tlog-tiles."""

TILE_HASHES = 256
"""Hashes in a full tile, entries in a full bundle; fixed by c2sp.org/tlog-tiles."""

TILE_LEVEL_MAX = 7
"""Highest tile level that a tree of LOG_ENTRIES_MAX entries has. The spec allows 63; no such tile can exist here."""

LOG_ENTRY_BYTES_MAX = 65_535
"""Largest log entry. Bundles carry a 16-bit length, fixed by c2sp.org/tlog-tiles."""

KEY_ID_BYTES = 4
"""Short key id in a note's signature line, fixed by c2sp.org/signed-note. It names a key and proves nothing."""

KEY_NAME_BYTES_MAX = 255
"""Longest key name or log origin, in UTF-8. c2sp.org/tlog-cosignature gives names one length byte."""

NOTE_SIGNATURES_MAX = 64
"""Signatures read in one note. The spec asks for at least 16; one log and a few dozen witnesses fit."""

NOTE_BYTES_MAX = 2**17
"""Largest signed note read. Sixteen post-quantum signatures of 5 kB, in base64, must fit."""

ED25519_KEY_BYTES = 32
ED25519_SIGNATURE_BYTES = 64

COSIGNATURE_TIME_S_MAX = 2**63 - 1
"""Largest cosignature time, fixed by c2sp.org/tlog-cosignature."""

LOG_KEY_CHARS_MAX = 200
"""Longest verifier key of a log, as it prints."""

KEY_ROTATIONS_MAX = 256
"""Most rotations of both keys together in the life of a log: each key once a month for ten years, and some. Every node
keeps the list, and a node that joins verifies all of it: three signatures and one inclusion proof for each."""

KEY_ROTATION_PAUSE_MS = 24 * 3_600_000
"""Least time between two rotations of one key. A thief of the keys, or a script, needs more than four months to use
up KEY_ROTATIONS_MAX."""

KEY_FILE_BYTES_MAX = 2**19
"""Largest list of rotations that is read. A rotation is a leaf of 400 to 800 bytes."""

assert (KEY_ROTATIONS_MAX + 1) * 1_024 <= KEY_FILE_BYTES_MAX, "a full list fits"

SNAPSHOT_BYTES_MAX = 2**30
"""Largest snapshot of the ledger state that is read. A state of 100,000 nodes is about 50 MB."""

RESTORE_GAP = 2**20
"""Numbers of leases, and of entries for the numbering of updates, that a restored log leaves out: those that the lost
entries used must not be given to others. It is more than a log grows by in RESTORE_LOSS_MS_MAX: 1,165 a second."""

RESTORE_LOSS_MS_MAX = 900_000
"""How much of its history a log may lose in a restore before nodes call it a fork, by when they saw the tree heads that
are lost. A mirror that copies every five minutes and misses one round fits. Within this time a coordinator can drop
entries of its choice by a false restore, which everyone sees; after it a settled submission is out of its reach."""

RESTORE_INTERVAL_MS = 24 * 3_600_000
"""Least time between two restores that lose entries. Disks do not fail daily; a coordinator that chooses which entries
to drop would like to do it often."""

SNAPSHOT_FORMAT_MAX = 2**16 - 1
"""Highest number of a snapshot's format."""

assert LOG_ENTRIES_MAX.bit_length() + 1 <= PROOF_HASHES_MAX, "every honest proof must fit"
assert TILE_HASHES == 2**TILE_HEIGHT, "a tile is a perfect subtree of hashes"
assert LOG_ENTRIES_MAX >> TILE_HEIGHT * TILE_LEVEL_MAX > 0, "the highest tile level must be reachable"
assert LOG_ENTRIES_MAX >> TILE_HEIGHT * (TILE_LEVEL_MAX + 1) == 0, "no level above the highest one exists"
assert NOTE_SIGNATURES_MAX >= 16, "asked for by c2sp.org/signed-note"
assert NOTE_BYTES_MAX >= 16 * (5_000 * 4 // 3 + KEY_NAME_BYTES_MAX + 8), "sixteen of the largest signatures must fit"

# --- Rollout file ---------------------------------------------------------------------------------------------------

ROLLOUT_FORMAT_VERSION = 2
"""Format 2 names the class of the engine. Only runs whose terms have a table of classes use it; others use format 1."""

ROLLOUT_FILE_BYTES_MAX = 256 * 2**20
"""Largest rollout file. 16 slots of 16 samples of 32,768 tokens at 16.1 bytes a token are 129 MiB."""

ROLLOUT_ROWS_MAX = 2**16
"""Most completions in one file: slots of the lease times samples."""

ROLLOUT_FOOTER_BYTES_MAX = 4096
"""Largest parquet footer. The one accepted form has at most about 1,400 bytes."""

PROMPT_TOKENS_MAX = 2**20
OUTPUT_TOKENS_MAX = 2**20
"""Longest prompt and completion a run may allow, in tokens: the longest context of current models."""

assert ROLLOUT_FILE_BYTES_MAX < 2**31, "parquet states page sizes as int32"
assert 16 * OUTPUT_TOKENS_MAX < ROLLOUT_FILE_BYTES_MAX, "the longest completion must fit a file"
assert OUTPUT_TOKENS_MAX <= POSITIONS_MAX, "every token of a completion needs its own position"

# --- Manifest, shards and deltas ------------------------------------------------------------------------------------

SHARD_BYTES = 16 * 2**20
"""Size of a shard where the publisher names no other: about a second at 130 Mbit/s, so one bad shard costs a second."""

SHARD_BYTES_MIN = 4 * 2**10
"""Smallest shard size a manifest may name. Below it the digests would weigh as much as the data in flight."""

SHARD_BYTES_MAX = 64 * 2**20
"""Largest shard size a manifest may name: a node holds a few shards in memory until their digests are checked."""

SHARDS_MAX = 2**14
"""Most shards in one manifest: 256 GiB at the default size, four times the checkpoint of INTELLECT-2."""

FILES_MAX = 1024
"""Most files in one checkpoint. The largest public ones are cut into fewer than 200."""

FILE_NAME_CHARS_MAX = 128

TENSORS_MAX = 2**16
"""Most tensors in one checkpoint. A dense 70B model has 723. Mixtures that keep their experts apart have many more:
Qwen3-30B-A3B 18,867, Qwen3-235B-A22B 36,945."""

MANIFEST_BYTES_MAX = 16 * 2**20
"""Longest signed manifest. That of Qwen3-30B-A3B has 3.4 MB. Only what the run's trainer has signed is parsed."""

TENSOR_NAME_CHARS_MAX = 256
TENSOR_DIMS_MAX = 8

CHECKPOINT_BYTES_MAX = 2**43
"""Largest file or tensor, 8 TiB. Far above any checkpoint, far below where 64-bit sums overflow."""

SAFETENSORS_HEADER_BYTES_MAX = 16 * 2**20
"""Largest safetensors header read. An honest tensor takes about 150 bytes of it: TENSORS_MAX of them take 9.4 MiB."""

DELTA_BLOCK_LANES = 2**21
"""Lanes patched at a time, so that memory is bounded by a block (4 MiB of bf16) and not by the largest tensor."""

DELTA_ZSTD_LEVEL = 1
"""Only the entropy coder of zstd pays on gaps and value planes; higher levels search for matches that are not there."""

CHILDREN_LISTED_MAX = 16
"""Children that a full shard server may name. It names about 8; more would not be asked anyway."""

CHILD_RECORD_BYTES_MAX = 3 * 2**10
"""Longest serving record that is passed on with a refusal: eight URLs and eight manifests take 2.2 kB."""

assert SHARD_BYTES_MIN <= SHARD_BYTES <= SHARD_BYTES_MAX, "the default must be allowed"
assert SHARDS_MAX * SHARD_BYTES_MAX < CHECKPOINT_BYTES_MAX, "a manifest's bytes must be countable"
assert TENSORS_MAX * 150 < SAFETENSORS_HEADER_BYTES_MAX, "a file with every tensor must be readable"
assert TENSORS_MAX * 170 + SHARDS_MAX * 80 < MANIFEST_BYTES_MAX, "the largest honest manifest must fit"
assert DELTA_BLOCK_LANES * 4 < 2**32, "lengths inside a block are 32-bit"

# --- Tasks ----------------------------------------------------------------------------------------------------------

TASK_SET_CHARS_MAX = 1024
"""Longest text of a task set: a family, a question mark, its parameters."""

TASK_PARAMETERS_MAX = 16
TASK_PARAMETER_CHARS_MAX = 80
"""Longest name or value of one parameter. A SHA-256 digest in hex has 66."""

TASKS_MAX = 2**32
"""Most tasks in a set: an index fits 32 bits. The largest public set has under 300,000."""

DIGITS_MAX = 18
"""Most digits of a number in the arithmetic and sorting families: both operands fit 64 bits."""

COMPLETION_CHARS_MAX = 4_000_000
"""Longest completion that is graded; what is beyond is graded as no answer. 32,768 tokens rarely pass 200,000."""

ANSWER_CHARS_MAX = 20_000
"""Longest answer handed to a grader. The longest key of a reasoning-gym dataset in use has under 7,000."""

MATH_ANSWER_CHARS_MAX = 1_000
"""Longest boxed answer handed to the symbolic comparison, whose cost grows faster than its input."""

PROGRAM_CHARS_MAX = 65_536
"""Longest program in a completion that is run."""

DATASET_BYTES_MAX = 256 * 2**20
"""Largest problem file. The public set of 285,000 problems is about 200 MiB without its solutions."""

DATASET_LINE_BYTES_MAX = 2**20
DATASET_PROMPT_CHARS_MAX = 32_768
DATASET_ANSWERS_MAX = 16
"""Most accepted answers to one mathematical problem."""

DATASET_TESTS_MAX = 64
"""Most unit tests of one programming problem. All of them are run for every completion."""

DATASET_TEST_CHARS_MAX = 100_000
"""Longest input or expected output of one unit test."""

JOB_WALL_MS = 10_000
"""Wall clock of a sandboxed job. Twice its CPU time, so that a busy machine does not change a grade."""

JOB_CPU_S = 5
JOB_MEMORY_BYTES = 512 * 2**20
"""Address space of one process, above what the interpreter holds before the job starts."""

JOB_FILE_BYTES = 16 * 2**20
JOB_OUTPUT_BYTES = 4 * 2**20
"""Most bytes read from each of a job's outputs."""

JOB_PROCESSES = 16
"""Processes and threads of one job. With the memory limit, what the worst job can take together."""

JOB_OPEN_FILES = 64

SIGNAL_CPU_TIME = 24
"""SIGXCPU on Linux: the job used up its CPU seconds."""

GRADER_CPU_S = 2
"""CPU time to compare one answer. An honest comparison takes milliseconds; a hostile one costs each validator this."""

TEST_CPU_S = 5
"""CPU time of one unit test, as in the public original."""

CODE_WALL_MS = 30_000
"""Wall clock of all unit tests of one program together."""

CODE_OUTPUT_BYTES = 16 * 2**20
"""Most bytes that the answers to all unit tests of one program may have."""

assert TASKS_MAX <= PERMUTATION_SIZE_MAX, "every task must be reachable by a slot"
assert JOB_WALL_MS >= 2_000 * JOB_CPU_S, "the CPU limit must be reached first on a machine that is half busy"
assert CODE_WALL_MS >= 2_000 * TEST_CPU_S, "a test must be able to use its CPU time"
assert DATASET_LINE_BYTES_MAX * 6 <= CODE_OUTPUT_BYTES, "the expected answers, escaped, must fit the output"

# --- Ledger ---------------------------------------------------------------------------------------------------------

BASIS_POINTS = 10_000
"""All of something, in hundredths of a percent."""

AMOUNT_NANO_MAX = 2**63 - 1
"""Most value the ledger can hold: 9.2 billion units of 10^9 nano. Sums stay inside what every database can store."""

ADDRESSES_MAX = 8
ADDRESS_CHARS_MAX = 200
"""Serving addresses of one node: a few interfaces and relays. Those in use have under 100 characters."""

REASON_CHARS_MAX = 400
METRICS_MAX = 64
"""Most numbers in one verdict, or of one step."""

READ_PROOF_PROBES = 16
"""Probes in a read proof: numbers that only a validator who ran the model on the file can compute."""

READ_PROOF_BYTES = 2 * READ_PROOF_PROBES
"""An int16 each."""

READ_BLOCK_TOKENS = 8192
"""Tokens of prompts and outputs that a validator reads before it weighs the evidence again: enough to keep a GPU busy,
and the most that is read in vain once the evidence convicts."""

READ_PROOF_ERROR_MAX = 0.25
"""Root mean square by which honest read proofs may differ."""

REFUTED_VERDICTS = 20
"""Verdicts that go unpaid for one that was refuted: where one in twenty is inspected, not looking earns nothing."""

QUORUM_MAX = 15
"""Most validators in one round. Each costs a full prefill of the submission."""

ROUNDS_MAX = 16
"""Most rounds of draws for one submission, the appeal's included."""

FINDINGS_MAX = 4
"""Findings about one submission that judges dismiss before no more are taken: each costs a quorum of readings."""

READERS_MAX = ROUNDS_MAX * QUORUM_MAX
"""Most validators of one submission."""

RANDOMNESS_KEY_BYTES = 96
RANDOMNESS_SIGNATURE_BYTES = 48
RANDOMNESS_SECRET_BYTES = 32
"""A compressed point of G2, of G1, and a scalar of BLS12-381, as drand's scheme bls-unchained-g1-rfc9380 uses them."""

RANDOMNESS_PERIOD_S_MAX = 3600
"""Longest time between two rounds of a randomness chain. Beacons and draws wait for one."""

DRAW_MARGIN_MS = 2 * 10_000
DRAW_MARGIN_MS_MAX = 3_600_000
"""Time between a noted head and the first round that may be drawn from. Two heartbeats: in the first a validator gets
the head, with the second it returns its cosignature."""

WITNESSES_MAX = 64
"""Most validators that are asked to cosign one head for a run. A third of all validators lying has the majority of 64
drawn ones in one head of 700; 33 cosignatures are 3.2 kB in the log."""

RUNS_SERVED_MAX = 16
"""Most runs that one validator registers for."""

COSIGNATURES_MAX = 256
"""Most cosignatures in one entry: of the witnesses of all runs that wait for the round. 256 are 25 kB."""

COSIGNATURES_REMEMBERED = 4096
"""Newest answers of `is_cosigned` that a program keeps: those of 16 full entries, about 2 MB."""

CANDIDATE_SPANS_KEPT = 8
"""Suspensions of one validator that draws with an older head ignore. A draw follows its head within minutes, and the
coordinator suspends a validator that keeps failing for twice as long each time."""

INSPECTORS_MAX = 16
"""Nodes of the operator's that read judged files of one run again."""

READ_FLOP_PER_US = 10**7
"""10 TFLOP/s: what a slow validator's GPU sustains. A run's default time to read a token follows from it, for two
forward passes: one in each precision."""

READ_US_PER_TOKEN_MIN = 200
"""Least default, in microseconds: the checks of a token's draw and proof cost time whatever the model's size."""

READ_US_PER_TOKEN_MAX = 10**6
"""A token in a second: slower machines judge nothing in time."""

LEASE_SLOTS_MAX = 4096
LEASE_MS_MAX = 24 * 3_600_000
"""Longest lease, and so the longest time that a lost node can block its slots."""

RETENTION_MS_MAX = 10 * 366 * 24 * 3_600_000
"""Longest time that terms can demand for a file: ten years. A term that is never reached would fill every disk."""

LINEAGE_MAX = 1500
"""Most submissions named by one entry: 1,500 digests are 51 kB, and an entry may have 65,535 bytes. Under rules 1 also
the most that one checkpoint is trained on."""

LINEAGE_PAUSE_MS = 600_000
"""Least time before a trainer may begin the list of a step again. It does so when it lost the checkpoint and trains the
step anew, which takes longer; a part is 51 kB of log."""

SETTLED_MAX = 512
"""Most submissions that one entry settles. In a tick of a second 10,000 workers submit about 170."""

SETTLED_BYTES_MAX = 100
"""Most bytes of one submission in it: a digest with its outcome has 65 at most; named again, without credit, 34."""

UNBONDINGS_MAX = 16
"""Most unbondings open at once behind one node, so that a slash looks at few."""

FLOP_PER_UNIT = 10**9
"""One unit of credit is this many floating-point operations of verified generation."""

FLOP_PER_TOKEN_MAX = 2**48
FLOP_PER_CONTEXT_TOKEN_MAX = 2**28
"""A model of 10^14 weights, and 128 layers of 4,096 heads of 128: larger than any in use, and credit stays a Uint."""

SUBMISSION_TOKENS_MAX = LEASE_SLOTS_MAX * SAMPLES_MAX * 2**20
"""Output tokens of the largest lease: slots, samples per slot, tokens per sample."""

assert (SUBMISSION_TOKENS_MAX * FLOP_PER_TOKEN_MAX + 2**63 * FLOP_PER_CONTEXT_TOKEN_MAX) // FLOP_PER_UNIT < 2**63
assert ROUNDS_MAX * QUORUM_MAX <= 256, "the verdicts on one submission must stay a page"
assert SETTLED_MAX * SETTLED_BYTES_MAX + 1024 < LOG_ENTRY_BYTES_MAX, "the largest entry that settles fits the log"

# --- Unsolicited entries ---------------------------------------------------------------------------------------------

REGISTRATION_MS = 600_000
"""Least time between two registrations of one key, and between two delegations that it brings. A node whose address
changes every ten minutes serves no peer."""

OWNER_ENTRY_MS = 600_000
"""An owner may write one entry about its accounts and nodes in this time, without being asked: 144 a day."""

OWNER_ENTRIES_BURST = 1024
"""How many of them an owner may save up: 256 nodes that register, are delegated to, get stake and give it back."""

ENTRY_VALUE_NANO = 10**9
"""A key with less than one token as balance or stake writes free entries, which come out of one budget for all such
keys. Keys cost nothing; a token behind each of them does."""

FREE_BYTE_MS = 20
"""Time for which one byte of a free entry uses up that budget: 4.3 MB a day, or 10,000 honest newcomers."""

FREE_BURST_MS = 24 * 3_600_000
"""How much of the budget may be saved up: a day's, so that thousands of nodes can join at once."""

FREE_BYTES_PER_DAY = FREE_BURST_MS // FREE_BYTE_MS
"""Most bytes by which keys without value grow the log in a day, on average; in one day at most twice as many."""

assert REGISTRATION_MS > ENVELOPE_LIFE_MS_MAX, "a registration that is sent again meets the first one in the state"
assert LOG_ENTRY_BYTES_MAX * FREE_BYTE_MS < FREE_BURST_MS, "the largest entry fits the budget"

# --- Work in flight -------------------------------------------------------------------------------------------------

HEARTBEAT_MS = 10_000
"""Between two beats of a node. A thousand nodes are then a hundred requests a second."""

LATE_MS = 3 * HEARTBEAT_MS
"""Without a beat or request for this long a node counts as late: two beats may get lost."""

LOST_MS = 12 * HEARTBEAT_MS
"""Without a beat for this long a node counts as gone. Its leases run on, and others get twins of them."""

REVEAL_MS = 6 * HEARTBEAT_MS
"""How long a validator has to give the verdict that it committed to. It hears with a heartbeat that it may; two may
get lost, and a node that was killed needs half a minute to start again."""

LEASES_OPEN_MAX = 32
"""Most leases of one node that are open at once. A lease of a quarter of a batch is open until its longest row is done,
which takes up to eight times the mean."""

AUDITS_LISTED_MAX = 64
"""Most audits named in one heartbeat reply; the rest follow with the next."""

UPDATES_LISTED_MAX = 32
"""Most updates about submissions in one heartbeat reply, about 8 kB; the rest follow with the next."""

ACCEPTED_LISTED_MAX = 256
"""Most accepted submissions in one reply to the trainer, about 80 kB."""

LEASE_TARGET_MS = 60_000
"""Work of a node's whole engine that a lease should hold: long enough to batch, short enough to lose."""

LEASE_SLACK = 2
"""A deadline is this many times the time until the longest possible row is done: an engine may first have to finish the
rows of an older checkpoint, and a node may slow down."""

UPLOAD_URL_CHARS_MAX = 4096
"""Longest presigned URL. S3's have 400 to 1,600 characters, the longest with a session token."""

assert DRAW_MARGIN_MS >= 2 * HEARTBEAT_MS, "a head must reach validators and their cosignatures must return"
assert LATE_MS >= 3 * HEARTBEAT_MS, "a node is not late before two beats were lost"
assert LOST_MS > LATE_MS
assert REVEAL_MS > LATE_MS, "a validator that lost two beats must still be able to give its verdict"
assert LEASE_SLACK * LEASE_TARGET_MS < LEASE_MS_MAX

# --- Gossip ---------------------------------------------------------------------------------------------------------

HOST_CHARS_MAX = 128
"""Longest DNS name in an address. The standard allows 253, but an address as a whole has ADDRESS_CHARS_MAX."""

GOSSIP_FRAME_BYTES_MAX = 32 * 2**10
"""Largest gossiped envelope. A serving record has at most 3 kB; a tree head with a dozen witnesses 3 kB."""

GOSSIP_NOTE_BYTES_MAX = 16 * 2**10
"""Largest tree head that is gossiped: the log's signature and NOTE_SIGNATURES_MAX Ed25519 ones with short names."""

GOSSIP_MANIFESTS_MAX = 8
"""Most manifests named in one serving record: keyframe and deltas of the last few steps."""

TREE_DEPTH_MAX = 64
"""Largest depth in the broadcast tree that a record may state. With two children each, 2^20 nodes are 20 deep."""

SLOTS_FREE_MAX = 4096

GOSSIP_PARENTS_MAX = 4
"""Most parents that a serving record names: those who gave most."""

SENT_BYTES_MAX = 2**63 - 1

GOSSIP_REPEAT_MS = 100_000
"""Between two messages of one kind and sender that say the same, in a small network."""

GOSSIP_REPEATS = 3
"""Repetitions for which an envelope lives: two may get lost."""

GOSSIP_LIFE_MS = ENVELOPE_LIFE_MS_MAX
"""Life of a gossiped envelope. A longer life needs fewer repetitions; what became of its sender meanwhile shows when
it is dialled."""

RELAYED_SERVING_PER_S = 40
"""Serving records a second that all nodes together post to the coordinator's relay, which handles some 500 requests a
second beside its other work."""

RELAYED_HEADS_PER_S = 8
"""The same of seen heads."""

SERVING_SAMPLE = 32
"""Serving records of one manifest that are gossiped while it is new, and of all that is served in every
GOSSIP_REPEAT_MS: a sample of the nodes, whatever their number. It is the number of parents with which the simulator of
the broadcast measures its times."""

HEADS_SAMPLE = 4
"""Seen heads that are gossiped in HEAD_REPEAT_MS, of all nodes. Every node compares each with its own: one is enough
for a node that alone was shown another history."""

HEAD_REPEAT_MS = 25_000
"""Between two heads of one node, in a small network, and of the coordinator."""

ANNOUNCED_REPEATED_MAX = 16
"""Announcements of one run that are repeated over gossip: those of the newest steps. The others are gossiped once, and
are in the coordinator's relay."""

SERVING_ACCEPTED_PER_S = 1.5
SERVING_ACCEPTED_BURST = 128
HEADS_ACCEPTED_PER_S = 0.5
HEADS_ACCEPTED_BURST = 32
ACCUSATIONS_ACCEPTED_PER_S = 0.2
ACCUSATIONS_ACCEPTED_BURST = 32
"""Messages of one run that a node takes from gossip, from all senders together: three times what an honest network
sends. A key is free, so limits for each sender do not bound a flood."""

GOSSIP_MESH, GOSSIP_MESH_MIN, GOSSIP_MESH_MAX = 4, 3, 6
"""Neighbours to which a node forwards every message of a topic: wanted, fewest and most. Each costs a copy."""

GOSSIP_CORE_SHARE_MAX = 0.02
GOSSIP_BYTES_PER_S_MAX = 20_000
"""What gossip may cost a node in a network of any size: share of one core, and bytes in and out."""

GOSSIP_IDLE_MICROS_PER_S, GOSSIP_IDLE_BYTES_PER_S = 8_000, 5_000
GOSSIP_MESSAGE_MICROS, GOSSIP_MESSAGE_BYTES = 4_000, 10_000
"""CPU and bytes of a node with 14 connections, in a second and for each message, copies and control messages included.
bench/gossip.py measured 5,900 and 3,970, 2,860 and 7,900 with 60 nodes; the rest is reserve."""

GOSSIP_STEP_MS = 60_000
"""Shortest time between two checkpoints for which the budget holds. Each gives a keyframe and a delta."""

GOSSIP_MILLIMESSAGES_PER_S = (
    SERVING_SAMPLE * (1_000_000 // GOSSIP_STEP_MS + 1_000_000 // GOSSIP_REPEAT_MS)
    + (HEADS_SAMPLE + 1) * (1_000_000 // HEAD_REPEAT_MS)
    + (ANNOUNCED_REPEATED_MAX * 1_000_000 // GOSSIP_REPEAT_MS + 2_000_000 // GOSSIP_STEP_MS)
)
"""Messages that a node receives in 1,000 s at most, while all are honest."""

assert GOSSIP_IDLE_MICROS_PER_S + GOSSIP_MILLIMESSAGES_PER_S * GOSSIP_MESSAGE_MICROS // 1000 <= (
    GOSSIP_CORE_SHARE_MAX * 1_000_000
), "gossip costs more CPU than its budget"
assert GOSSIP_IDLE_BYTES_PER_S + GOSSIP_MILLIMESSAGES_PER_S * GOSSIP_MESSAGE_BYTES // 1000 <= GOSSIP_BYTES_PER_S_MAX, (
    "gossip costs more bandwidth than its budget"
)
assert GOSSIP_IDLE_MICROS_PER_S + GOSSIP_MESSAGE_MICROS * (
    SERVING_ACCEPTED_PER_S + HEADS_ACCEPTED_PER_S + ACCUSATIONS_ACCEPTED_PER_S
) <= (GOSSIP_CORE_SHARE_MAX * 1_000_000), "a flood of records costs more CPU than the budget"

ANNOUNCED_BURST = 256
ANNOUNCED_SENDER_PER_S = 1.0
"""Announcements of one trainer that are passed on. One with hundreds of manifests names them all when it comes back."""

SERVING_BURST = 8
SERVING_SENDER_PER_S = 0.5
"""Serving records of one node that are passed on: every two seconds one that says how many slots are free."""

HEADS_BURST = 4
HEADS_SENDER_PER_S = 0.2
"""Seen heads of one node that are passed on. Heads come once a second at most; every fifth is enough to compare."""

ACCUSATIONS_BURST = 4
ACCUSATIONS_SENDER_PER_S = 0.05
"""Accusations of one node that are passed on. A node that found a broken rule repeats it every GOSSIP_REPEAT_MS."""

ACCUSED_LEAF_BYTES_MAX = 8 * 2**10
"""Largest leaf that an accusation carries; of a larger one it carries the hash. Honest leaves have 300 to 1,500."""

ACCUSATION_CHARS_MAX = 400
"""Longest text of an accusation."""

LIVE_CLOCK_MS_MAX = ENVELOPE_LIFE_MS_MAX
"""How far the time of an entry may lie outside the time in which a node saw it appear, before the node accuses the log.
An entry can be this old when it is first shown: its envelope lives that long, so a coordinator whose database stalls
for a while still logs it. It also covers both clocks (CLOCK_SKEW_MS_MAX each) and a slow reply. A false accusation
stops honest validators, and five minutes gain a coordinator little: draws do not depend on `at_ms`."""

GOSSIP_SENDERS_MAX = 2**16
"""Most senders remembered, each counted for every kind and run: 30,000 nodes, about 40 MB."""

GOSSIP_SUBJECTS_MAX = 1024
"""Most manifests of one trainer that are announced at once."""

GOSSIP_SEEN_MAX = 2**16
"""Most accepted frames whose digests are kept. Beyond it copies are still known, by their sequence numbers."""

PEER_RECORDS_MAX = 32
"""Most peer records in one answer. A node that knows this many peers is well connected."""

RECENT_ANNOUNCED_MAX = 16
RECENT_SERVING_MAX = 32
RECENT_HEADS_MAX = 4
RECENT_ACCUSATIONS_MAX = 4
"""Messages of one run that a node keeps for peers that join: the newest announcements, and a sample of parents."""

RECENT_FRAMES_MAX = RECENT_ANNOUNCED_MAX + RECENT_SERVING_MAX + RECENT_HEADS_MAX + RECENT_ACCUSATIONS_MAX

RECENT_BYTES_MAX = 2**18
"""Frames in one answer to a peer that joins. The usual ones take 40 kB."""
assert RECENT_BYTES_MAX >= 8 * GOSSIP_FRAME_BYTES_MAX, "the newest announcements always fit"

BOOTSTRAP_NODES = 12
"""Nodes of the run that the coordinator names to a node that starts: as many as a node dials (p2p.peers_target)."""

BOOTSTRAP_PEERS_MAX = ADDRESSES_MAX + BOOTSTRAP_NODES
"""Addresses in an answer of the relay: the coordinator's own, and one of each node."""

PEER_RECORD_BYTES_MAX = 4096
"""Largest envelope of a peer record: ADDRESSES_MAX addresses take under 2 kB."""

RELAY_FRAMES_MAX = 64
RELAY_SERVING_MAX = 32
RELAY_HEADS_MAX = 8
RELAY_ACCUSATIONS_MAX = 4
"""Frames in one answer of the coordinator's records, serving records among them, seen heads, and accusations. A few
dozen parents are more than a node ever tries; the next request gets others."""

RELAY_WAIT_MS_MAX = 20_000
"""Longest time that a question for records waits for news: home routers forget a silent connection after 30 s."""

assert GOSSIP_REPEATS * GOSSIP_REPEAT_MS <= GOSSIP_LIFE_MS <= ENVELOPE_LIFE_MS_MAX, "two repetitions may get lost"
assert CLOCK_SKEW_MS_MAX < GOSSIP_LIFE_MS, "a sender whose clock is behind is still heard"
assert SERVING_SAMPLE * (GOSSIP_LIFE_MS - CLOCK_SKEW_MS_MAX) >= 2 * SERVING_SAMPLE * GOSSIP_REPEAT_MS, (
    "in a network of any size twice a sample of serving records is alive"
)
assert HEAD_REPEAT_MS <= GOSSIP_REPEAT_MS
assert SERVING_ACCEPTED_BURST >= 2 * SERVING_SAMPLE, "the records of a keyframe and a delta, at once"
assert HEADS_ACCEPTED_PER_S >= 2 * (HEADS_SAMPLE + 1) * 1000 / HEAD_REPEAT_MS
assert (
    GOSSIP_MANIFESTS_MAX * 34 + GOSSIP_PARENTS_MAX * 22 + ADDRESSES_MAX * (ADDRESS_CHARS_MAX + 3)
    < GOSSIP_FRAME_BYTES_MAX
)
assert GOSSIP_NOTE_BYTES_MAX + 1024 < GOSSIP_FRAME_BYTES_MAX
assert ADDRESSES_MAX * (ADDRESS_CHARS_MAX + 3) + 1024 < PEER_RECORD_BYTES_MAX <= GOSSIP_FRAME_BYTES_MAX
assert GOSSIP_NOTE_BYTES_MAX + ACCUSED_LEAF_BYTES_MAX + PROOF_HASHES_MAX * 34 + 4 * ACCUSATION_CHARS_MAX + 1024 < (
    GOSSIP_FRAME_BYTES_MAX
), "the largest accusation fits a frame"
assert LIVE_CLOCK_MS_MAX > 4 * CLOCK_SKEW_MS_MAX, "two honest clocks and a slow reply must fit"
assert RELAY_SERVING_MAX + RELAY_HEADS_MAX + RELAY_ACCUSATIONS_MAX < RELAY_FRAMES_MAX, (
    "announcements come first, and always fit"
)
assert RELAY_FRAMES_MAX * GOSSIP_FRAME_BYTES_MAX < FRAME_BYTES_MAX, (
    "an answer full of the largest frames is one envelope"
)
