"""Numbers of the coordinator's own policy: nobody else has to agree with them, so they may change at any time.

What the network agrees on is in prime_protocol.constants.
"""

THROUGHPUT_MIN = 1.0
"""Tokens per second assumed of the slowest node."""

THROUGHPUT_CLAIMED_MAX = 1000
"""Most tokens per second that are believed before anything was measured."""

THROUGHPUT_DECAY = 0.7
"""Weight of what was known when a new measurement comes."""

RETRY_MS = 2_000
"""When to ask again after a refusal that time may mend."""

RETRY_MS_MAX = 10_000
"""The same where nothing is known to happen soon. Idle nodes then ask as often as they beat."""

STRAGGLER_SHARE = 0.5
"""A lease that has used this part of its time, in a step with no free slots, gets a speculative twin."""

TOKENS_PER_SLOT_FIRST = 0.5
"""Share of the longest completion assumed before a step has any submission."""

NODES_PER_OWNER_MAX = 256
"""Registered nodes of one owner. A data centre uses several owners; a flood is capped."""

NODES_PER_ADDRESS_GROUP_MAX = 64
"""Nodes that register from one /24 (IPv4) or /48 (IPv6) in an hour."""

ADDRESS_GROUP_MS = 3_600_000

LEASES_UNSETTLED_MAX = 8
"""Leases and unjudged submissions of one node at once: a bad one must not fill a step before its first verdict."""

LEASES_UNSETTLED_PROBATION_MAX = 3
"""The same on probation: one at work, one being judged, one on the way."""

PROBATION_STEP_PARTS = 4
"""Largest lease on probation: this part of a step. An answer that comes suspiciously fast must not win all of it."""

FILE_BYTES_PER_TOKEN = 17
"""Of a rollout file, at most: token, log-prob, its share of a proof. 16.1 are measured; the file must fit intake."""

BAD_FILES_PER_LEASE_MAX = 3
"""Files that intake may refuse before it takes no more for a lease. Each costs a read of up to 256 MiB."""

FAILURES_FREE = 2
"""Lost leases and refused files in a row that cost nothing: anybody's power may fail."""

FAILURE_WAIT_MS = 15_000
FAILURE_WAIT_MS_MAX = 3_600_000
"""How long a node gets no work after the first strike that counts; doubled by each further one up to an hour."""

MISSES_MAX = 3
"""Audits in a row that a validator lets pass while it beats, before it is taken out of the draw for a while."""

MISS_WAIT_MS = 60_000
MISS_WAIT_MS_MAX = 3_600_000
"""For how long, at first and at most; doubled each time until it gives a verdict."""

BLAME_PER_OVERTURNED = 4
BLAME_MAX = 8
"""Blame for a verdict that fell, and how much takes a validator out of the draw; one that stood takes 1 off. So two in
a row are too many, and so is one in five. Honest ones are outvoted in about one of five thousand."""

OVERTURNED_WAIT_MS = 600_000
OVERTURNED_WAIT_MS_MAX = 86_400_000
"""How long a validator that was wrong too often stays out, at first and at most; doubled until its blame is gone."""

UNREAD_WAIT_MS = 3_600_000
UNREAD_WAIT_MS_MAX = 7 * 86_400_000
"""How long a validator that judged without reading stays out, at first and at most; doubled each time."""

GRACE_MS = 30_000
"""After a start nobody is blamed for silence, and no round is given up: the silence may have been ours."""

HEAD_MS_MIN = 1_000
"""Least time between two noted heads."""

TOKENS_PER_SLOT_DECAY = 0.9
"""Weight of what was known of a run's tokens per slot when a new submission comes."""

AUDIT_ROUNDS_MAX = 4
"""Draws of validators before an undecided submission is settled without credit or blame."""

AUDIT_RETRY_MS = 5_000
"""Between two tries to draw where too few validators can be drawn: one may have joined."""

INSPECT_SHARE = 1_000
"""Basis points of judged submissions that are read again, where nobody says otherwise. One in ten and a price of
twenty verdicts are twice what it takes that not reading does not pay."""

PLANT_BAD_BPS = 5_000
"""Share of planted files that are bad. Half: who always says the same is right no more often than chance."""

assert LEASES_UNSETTLED_PROBATION_MAX >= 2, "a node must be able to work while its last submission is judged"
assert LEASES_UNSETTLED_PROBATION_MAX <= LEASES_UNSETTLED_MAX
assert RETRY_MS <= RETRY_MS_MAX
assert BLAME_PER_OVERTURNED < BLAME_MAX, "who is outvoted once must not leave for it"

PAGE_ROWS = 50
"""Rows of a page where the reader does not say."""

PAGE_ROWS_MAX = 200
"""Most rows of a page: each may cost two short reads of the database."""

PAGE_SCAN_MAX = 5_000
"""Nodes looked at for one page. A filter that matches few must not hold up the heartbeats; about 4 ms."""

PAGE_LEAF_BYTES_MAX = 512 * 1024
"""Log entries of one page, in bytes. As JSON they are about twice as long, and must fit into one signed reply."""

READER_RATE = 20.0
"""Questions a second from one address, for ever."""

READER_BURST = 60
"""Questions at once from one address after a pause: a page of the explorer asks several."""

READERS_KNOWN_MAX = 100_000
"""Addresses whose rate is remembered."""

STATUS_MS = 500
"""How old a shown status may be: counting everything for each reader would cost more than it tells."""

READERS_MAX = 64
"""Questions being answered at once."""

TICK_MS = 200
"""Between two looks at what time has made due."""

UPLOADS_PER_GRANT_MAX = 3
"""Files that one lease or one audit task entitles to: a second and third for those that were refused."""

UPLOADS_KNOWN_MAX = 100_000
"""Leases and audit tasks whose uploads are counted."""

UNCLAIMED_MS = 24 * 3_600_000
"""How long an uploaded file waits for the entry that names it."""

SWEEP_MS = 3_600_000
"""Between two looks for files that no entry names."""

QUARANTINE_FILES_MAX = 200
"""Refused files that are kept for the operator to look at; later ones are only noted."""

RELAY_SERVING_KEPT = 20_000
"""Serving records kept of one run, about 400 bytes each; the oldest goes first."""

RELAY_ANNOUNCED_MAX = 256
"""Announcements kept of one run: keyframes and deltas of all versions that a trainer keeps."""

RELAY_HEADS_KEPT = 64
"""Seen heads kept of one run, of the nodes that spoke last. A fork needs two."""

RELAY_URGENT_MANIFESTS_MAX = 2
"""The newest announcements whose first server everybody is told of at once: a keyframe and a delta of one step."""

RELAY_SCAN_MAX = 512
"""Newest serving records that an answer is drawn from: a quarter of a millisecond. Older ones are said again soon."""

RELAY_SWEEP_MS = 10_000
"""Between two looks for expired records."""

GOSSIP_POLL_PAUSE_MS = 1_000
"""A node that asks for records is told small news no sooner than this after it asked: they come together."""

GOSSIP_ANSWERS_PER_S = 500
"""Answers with small news a second to all nodes together; with more nodes that wait, each waits longer."""

HEAD_GOSSIP_MS = 6_000
"""Between two tree heads that the coordinator gossips: a little above what one sender may say."""

PORT = 8440
"""Where a coordinator listens unless `init` was told otherwise: nodes write the address down, so it must not change."""

assert UNCLAIMED_MS > SWEEP_MS
