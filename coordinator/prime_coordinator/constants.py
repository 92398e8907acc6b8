"""Numbers of the coordinator's own policy: no other party depends on them, so they may change at any time.

Numbers that the network agrees on are in prime_protocol.constants.
"""

from prime_protocol.constants import LEASE_MS_MAX

THROUGHPUT_MIN = 1.0
"""Lowest tokens per second assumed of a node."""

THROUGHPUT_CLAIMED_MAX = 1000
"""Most tokens per second accepted from a node's own claim, before a measurement."""

THROUGHPUT_HALF_LIFE_MS = 120_000
"""Least time of work after which a measurement counts half; twice the time that its lease took, if that is more. Leases
that are generated together end at random moments, so one of them says little."""

RETRY_MS = 2_000
"""When to ask again after a refusal that may soon change."""

RETRY_MS_MAX = 10_000
"""The same if no change is expected soon. Idle nodes then ask as often as they send heartbeats."""

STRAGGLER_SHARE = 0.5
"""A lease that has used this share of its time, in a step without free slots, gets a speculative duplicate."""

LATENCY_MS_MAX = 60 * 60_000
"""The longest time that a row should take, and after which any lease is a straggler. A machine that is slow for its
memory is given so few rows that the long ones are done by then."""

ACTIVE_MS = 300_000
"""How long a worker counts for the shares of others after it asked for work."""

TAIL_MEANS = 8
"""Long rows have this many times the mean length: in log-normal lengths of sigma 1, one row of 200 is longer."""

IN_HAND_BATCHES = 12
"""Rows of the open leases of one node, in batches of its engine. Leases wait for their longest row: TAIL_MEANS batches
pass meanwhile, and up to two more wait or are new."""

BATCH_PARTS = 4
"""A lease has at least this part of what a node's engine holds at once. Smaller ones would be more than LEASES_OPEN_MAX
before the longest row of the first is done."""

CREDIT_GROWTH = 3
"""Rows that a delivered row allows beside itself: four times as many are in hand after each round. From a slot of 16
rows to a GPU that holds 256 takes two rounds."""

ROWS_CREDIT_MAX = 2**20
"""Bounds the numbers; no machine holds that many."""

TOKENS_PER_SLOT_FIRST = 0.5
"""Share of the longest completion assumed before a run has a submission."""

NODES_PER_OWNER_MAX = 256
"""Registered nodes of one owner, against floods. A data centre uses several owners."""

NODES_PER_ADDRESS_GROUP_MAX = 64
"""Nodes that register from one /24 (IPv4) or /48 (IPv6) in an hour."""

ADDRESS_GROUP_MS = 3_600_000

FREE_ENTRIES_PARTS = 4
"""One such range gets at most this part of the network's budget for entries by keys without value."""

LEASES_UNSETTLED_MAX = 48
"""Open leases and unsettled submissions of one node: a full LEASES_OPEN_MAX, and as long in audit as in work."""

UNSETTLED_STEPS_MAX = 2
"""Slots of those, in steps of the run: what a node can forge before its first verdict, however small its leases are."""

LEASES_UNSETTLED_PROBATION_MAX = 3
"""The same on probation: one in work, one in audit, one in transfer."""

PROBATION_STEP_PARTS = 4
"""Largest lease on probation: a step divided by this. A suspiciously fast node must not win a whole step."""

FILE_BYTES_PER_TOKEN = 17
"""Upper bound for a rollout file: token, log-prob, share of a proof. 16.1 are measured; the file must fit intake."""

BAD_FILES_PER_LEASE_MAX = 3
"""Refused files after which a lease gets no further try. Each costs a read of up to 256 MiB."""

FAILURES_FREE = 2
"""Expired leases and refused files in a row without a penalty: any machine may lose power."""

FAILURE_WAIT_MS = 15_000
FAILURE_WAIT_MS_MAX = 3_600_000
"""How long a node gets no work after the first failure that counts; doubled by each further one up to an hour."""

MISSES_MAX = 3
"""Missed audits in a row of a validator that sends heartbeats, before it is suspended."""

MISS_WAIT_MS = 60_000
MISS_WAIT_MS_MAX = 3_600_000
"""First and longest such suspension; doubled each time until the node gives a verdict."""

BLAME_PER_OVERTURNED = 4
BLAME_MAX = 8
"""Blame for an overturned verdict, and the total that suspends a validator; a confirmed verdict removes 1. So two in a
row are too many, and so is one in five. Honest validators are outvoted in about one of five thousand."""

OVERTURNED_WAIT_MS = 600_000
OVERTURNED_WAIT_MS_MAX = 86_400_000
"""First and longest suspension of a validator that was wrong too often; doubled until its blame is gone."""

UNREAD_WAIT_MS = 3_600_000
UNREAD_WAIT_MS_MAX = 7 * 86_400_000
"""First and longest suspension of a validator that judged without reading; doubled each time."""

GRACE_MS = 30_000
"""After a start no node is blamed for silence and no round is given up: the coordinator may have been down."""

ROUND_LATE_S = 10
"""A round of the randomness chain that is this late is reported. Servers publish within a second."""

HEAD_MS_MIN = 1_000
"""Least time between two noted heads."""

TOKENS_PER_SLOT_DECAY = 0.9
"""Weight of the old estimate of a run's tokens per slot when a new submission comes."""

AUDIT_RETRY_MS = 5_000
"""Between two tries to draw if there are too few validators: one may have joined."""

INSPECT_SHARE = 1_000
"""Default basis points of settled submissions that are inspected. One in ten, with a penalty of twenty verdicts, is
twice what makes not reading unprofitable."""

assert LEASES_UNSETTLED_PROBATION_MAX >= 2, "a node must be able to work while its last submission is in audit"
assert LEASES_UNSETTLED_PROBATION_MAX <= LEASES_UNSETTLED_MAX
assert RETRY_MS <= RETRY_MS_MAX
assert BLAME_PER_OVERTURNED < BLAME_MAX, "one overturned verdict alone must not suspend"

UPDATES_KEPT_MAX = 1_024
"""Updates about submissions that a silent node has not confirmed: more than it can have in progress. About 300 kB."""

STATUS_MS = 500
"""How old a cached status may be: computing it for each reader would cost too much."""

TICK_MS = 200
"""Between two checks for what is due."""

UPLOADS_PER_GRANT_MAX = 3
"""Uploads that one lease or audit task entitles to: the second and third replace refused files."""

FINDING_BYTES_MAX = 8 * 2**20
"""Largest evidence of a finding. It omits the rollout file, and the reading stops once the evidence convicts."""

FINDINGS_UNFILED_MAX = 3
"""Submissions about which one account may upload evidence before it files a finding: a bond pays for each that is
filed, but one balance could otherwise pay for files about every submission."""

UPLOADS_KNOWN_MAX = 100_000
"""Leases and audit tasks whose uploads are counted."""

UNCLAIMED_MS = 24 * 3_600_000
"""How long an uploaded file is kept without an entry that names it."""

SWEEP_MS = 1_000
"""Between two deletions of files that are due."""

SWEEP_FILES_MAX = 200
"""Most files deleted at once: 17 million a day, where 10,000 nodes make 7 million."""

SWEEP_RETRY_MS = 60_000
"""After the object store refused a deletion."""

DELETES_AT_ONCE = 16
"""Deletions that a bucket works on at the same time."""

ORPHANS_MS = 60_000
"""Between two searches for objects without a row, each in the folder of one day."""

ORPHANS_AFTER_MS = 3 * 24 * 3_600_000
"""Age of a day whose folder is searched: no upload to it is under way any more."""

DISK_CHECK_MS = 3_600_000
"""Between two checks whether the disk is filling: over an hour, uploads and deletions even out."""

UNFILED_CHECK_MS = 3_600_000
"""Between two checks for evidence of findings that were not filed."""

SNAPSHOT_CHECK_MS = 1_000
"""Between two looks whether a snapshot of the state is due."""

WRITER_CHECK_MS = 2_000
"""Between two looks whether another process writes to the database: one look is a search in an index."""

SCRUB_MS = 24 * 3_600_000
"""Between two comparisons of the whole log on disk with what was signed."""

QUARANTINE_FILES_MAX = 200
"""Refused files kept for the operator; of later ones only the reason is stored."""

RELAY_SERVING_KEPT = 20_000
"""Serving records kept of one run, about 400 bytes each; the oldest are dropped first."""

RELAY_ANNOUNCED_MAX = 256
"""Announcements kept of one run: keyframes and deltas of all versions that a trainer keeps."""

RELAY_HEADS_KEPT = 64
"""Seen heads kept of one run, of the latest senders. A proof of a fork needs two."""

RELAY_ACCUSATIONS_KEPT = 64
"""Accusations kept of one run, of the latest senders, at most 32 kB each."""

RELAY_URGENT_MANIFESTS_MAX = 2
"""Newest announcements whose first server is sent to all nodes at once: a keyframe and a delta of one step."""

RELAY_SCAN_MAX = 512
"""Newest serving records that a reply is drawn from: a quarter of a millisecond. Older ones are soon repeated."""

RELAY_SWEEP_MS = 10_000
"""Between two searches for expired messages."""

GOSSIP_POLL_PAUSE_MS = 1_000
"""A long poll gets minor messages no sooner than this, so that they come together."""

GOSSIP_ANSWERS_PER_S = 500
"""Replies a second with minor messages, to all nodes together; with more polling nodes, each waits longer."""

BOOTSTRAP_RECORDS = 4_096
"""Peer records of reachable nodes that are kept, 300 bytes each. Every node that starts gets a sample of them."""

BOOTSTRAP_OWNER_RECORDS = 16
"""Those of one owner."""

BOOTSTRAP_CANDIDATES = 64
"""Nodes drawn, among which different owners and address ranges come first."""

PORT = 8440
"""Default port of `init`. Nodes store the address, so it must not change."""

assert UNCLAIMED_MS >= LEASE_MS_MAX, "a file is kept until the last moment at which a submission can name it"
assert ORPHANS_AFTER_MS > UNCLAIMED_MS
assert SWEEP_FILES_MAX * 86_400_000 // SWEEP_MS >= 7_000_000, "the sweep keeps up with 10,000 nodes"

QUORUMS_MIN = 3
"""How many times the quorum of owners a run should have validators of: for the audit, the slash and its appeal."""

TRAINER_SILENT_MS = 24 * 3_600_000
FUNDED_MS_NOTED = 24 * 3_600_000
CALIBRATION_OLD_MS = 180 * 24 * 3_600_000
DISK_FREE_BYTES_NOTED = 20 * 10**9
DISK_FREE_BYTES_MIN = 2 * 10**9
"""What `check` calls too long without a checkpoint, too little money in a pool, too old a calibration, and too little
disk: a day to react is left everywhere, and 2 GB are a snapshot, the index and a few large uploads."""

QUICKSTART_FAUCET_NANO = 1_000 * 10**9
"""What a new node of a quickstart network gets: ten times the default stake."""
QUICKSTART_DEPOSIT = 1_000_000
QUICKSTART_POOL = 100_000
"""Play money in whole units: the pool pays 50,000 steps of the default budget."""

QUICKSTART_READY_S = 180
"""How long quickstart waits until others can join. A model of a few gigabytes is published within it."""
