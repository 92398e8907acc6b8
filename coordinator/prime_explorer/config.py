"""Numbers of the explorer's own policy: nobody else has to agree with them.

The settings of an explorer that a coordinator serves.
"""

from dataclasses import dataclass
from pathlib import Path

FOLD_BATCH_ENTRIES = 1_000
"""Entries folded between two commits of the index: about a fifth of a second, and what a crash makes fold again."""

SNAPSHOT_ENTRIES = 50_000
"""Entries between two snapshots of the state: folding so many again takes a start two seconds."""

MIRROR_POLL_MS = 250
"""Between two looks at a mirror on this machine: one `stat`."""

REMOTE_POLL_MS = 2_000
"""Between two looks at a mirror elsewhere."""

FETCH_THREADS = 8
FETCH_BATCH_FILES = 256
"""Files of a mirror that are asked for before it is looked whether somebody still wants them."""
FETCH_TIMEOUT_S = 30.0
"""For one file of a mirror elsewhere, at most 17 MB long."""

INDEX_DELAY_MS = 20_000
"""When the index is followed up after a start, unless somebody opens a page before: a start has other things to do."""

UPTIME_SAMPLE_MS = 60_000
"""Between two counts of who is online."""

HEADS_KEPT = 5_000
"""Signed heads kept in the index, newest first. Any older one is known by its size, and its root follows from tiles."""

READER_THREADS = 4
"""Threads that read the index and fill templates."""

CONCURRENT_PAGES_MAX = 64
PAGE_RATE = 50.0
PAGE_BURST = 400
"""Requests a second from one address for ever, and at once: a page is about eight files the first time."""

ADDRESSES_TRACKED_MAX = 100_000
"""Addresses whose rate is remembered."""

PAGE_TIMEOUT_MS = 10_000
"""Time for one page."""

STREAMS_MAX = 500
STREAMS_PER_ADDRESS_MAX = 10
"""Pages that hear of news at once. Each is an open connection and nothing else."""

UPDATE_POLL_MS = 1_000
"""Between two looks for news, for all streams together."""

STREAM_CHECK_MS = 1_000
"""Between two looks whether the reader of a stream is still there."""

KEEP_ALIVE_MS = 15_000
"""Between two comments on a quiet stream, so that proxies do not close it."""

ROWS_PER_PAGE = 25
"""Rows of a table."""

STEPS_CHARTED = 200
"""Newest steps that a run's charts show."""

STEPS_DRAWN = 8
"""Newest steps in the timeline."""

LINEAGE_NODES_DRAWN = 12
NETWORK_NODES_DRAWN = 400
"""Dots of the picture of the network; what is left out is said beside it."""

ROLLOUTS_SHOWN = 6
"""Rollouts of a submission on one page."""

ROLLOUT_CHARS_SHOWN = 4_000
"""Characters of one completion; the file has the rest."""

ROLLOUT_FILE_BYTES_SHOWN = 32 * 2**20
"""Longest rollout file that is read for a page; a longer one can be downloaded."""

MANIFEST_BYTES_READ = 8 * 2**20
EVIDENCE_BYTES_READ = 32 * 2**20
"""Longest manifest, and longest evidence with its rollout file in it, that is read for a page."""

MANIFESTS_CACHED = 4_096

QUERY_CHARS_MAX = 100
SEARCH_RESULTS_MAX = 20
"""Most results of a search."""

CSV_BATCH_ROWS = 1_000
ANCHORS_SHOWN = 20
"""Heads on the chain that the page of heads shows."""


@dataclass(frozen=True, kw_only=True)
class ExplorerConfig:
    """The section [explorer]: web pages over the log, on the same port."""

    enabled: bool = True
    """Serve them. The index that they read takes a process of its own and about 2 kB of disk for each entry."""
    models: tuple[Path, ...] = ()
    """Folders of checkpoints whose tokenizers turn rollouts into text, each used for runs that bind its files."""
