"""Numbers of the coordinator's own policy: nobody else has to agree with them, so they may change at any time.

What the network agrees on is in prime_protocol.constants.
"""

SPEED_MIN = 1.0
"""Tokens per second assumed of the slowest node."""

SPEED_FIRST_MAX = 1000
"""Most tokens per second that are believed before anything was measured."""

SPEED_KEEP = 0.7
"""Weight of what was known when a new measurement comes."""

RETRY_MS = 2_000
"""When to ask again after a refusal that time may mend."""

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

HEAD_MS_MIN = 1_000
"""Least time between two noted heads."""

TOKENS_PER_SLOT_KEEP = 0.9
"""Weight of what was known of a run's tokens per slot when a new submission comes."""

AUDIT_ROUNDS_MAX = 4
"""Draws of validators before an undecided submission is settled without credit or blame."""

assert LEASES_UNSETTLED_MAX >= 2, "a node must be able to work while its last submission is judged"
