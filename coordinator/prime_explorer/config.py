"""The settings of an explorer that a coordinator serves, and limits that only the explorer uses."""

from dataclasses import dataclass
from pathlib import Path

FOLD_BATCH_ENTRIES = 1_000
"""Entries per commit of the index: about a fifth of a second. A crash repeats at most one batch."""

SNAPSHOT_ENTRIES = 50_000
"""Entries between two snapshots of the state. Folding this many again takes two seconds at a start."""

MIRROR_POLL_MS = 250
"""Interval of polling a local mirror, which costs one `stat`."""

REMOTE_POLL_MS = 2_000
"""Interval of polling a remote mirror."""

FETCH_THREADS = 8
FETCH_BATCH_FILES = 256
"""Files of a mirror that are fetched between two checks for shutdown."""
FETCH_TIMEOUT_S = 30.0
"""Timeout for one file of a remote mirror, at most 17 MB long."""

INDEX_DELAY_MS = 20_000
"""Delay of indexing after a start, unless a page is requested earlier. A start has more urgent work."""

UPTIME_SAMPLE_MS = 60_000
"""Interval of sampling which nodes are online."""

HEADS_KEPT = 5_000
"""Newest signed heads kept in the index. The root of an older one can be computed from tiles."""

READER_THREADS = 4
"""Threads that read the index and render templates."""

CONCURRENT_PAGES_MAX = 64
PAGE_RATE = 50.0
PAGE_BURST = 400
"""Sustained and burst requests per second of one address. The first page loads about eight files."""

ADDRESSES_TRACKED_MAX = 100_000
"""Addresses whose request rate is tracked."""

PAGE_TIMEOUT_MS = 10_000
"""Timeout of one page."""

STREAMS_MAX = 500
STREAMS_PER_ADDRESS_MAX = 10
"""Open update streams. Each costs one idle connection."""

UPDATE_POLL_MS = 1_000
"""Interval of polling the index for updates, once for all streams."""

STREAM_CHECK_MS = 1_000
"""Interval of checking whether the client of a stream is still connected."""

KEEP_ALIVE_MS = 15_000
"""Interval of comments on an idle stream, so that proxies keep it open."""

ROWS_PER_PAGE = 25
ROWS_PER_PAGE_MAX = 200
"""Rows of one page of a table: by default, and on request."""

ENTRIES_SCANNED_MAX = 2_000
"""Entries about one subject or by one author that are searched for another filter's matches, about 10 ms."""

INDEX_WAIT_S = 5.0
INDEX_POLL_S = 0.1
"""How long a JSON request waits for the first index, and how often it looks. A new index takes about a second."""

STEPS_CHARTED = 200
"""Newest steps in the charts of a run."""

STEPS_DRAWN = 8
"""Newest steps in the timeline."""

LINEAGE_NODES_DRAWN = 12
NETWORK_NODES_DRAWN = 400
"""Nodes in the drawing of the network; the page says how many are omitted."""

ROLLOUTS_SHOWN = 6
"""Rollouts of a submission on one page."""

ROLLOUT_CHARS_SHOWN = 4_000
"""Characters shown of one completion."""

ROLLOUT_FILE_BYTES_SHOWN = 32 * 2**20
"""Largest rollout file that is read for a page."""

MANIFEST_BYTES_READ = 8 * 2**20
EVIDENCE_BYTES_READ = 32 * 2**20
"""Largest manifest, and largest evidence bundle including its rollout file, that is read for a page."""

EXPIRED_ASKED_MAX = 8
"""Files of one page that a coordinator is asked about, whether they expired."""
MANIFESTS_CACHED = 4_096

QUERY_CHARS_MAX = 100
SEARCH_RESULTS_MAX = 20
"""Maximum results of a search."""

CSV_BATCH_ROWS = 1_000
ANCHORS_SHOWN = 20
"""Newest anchored heads on the page of heads."""


@dataclass(frozen=True, kw_only=True)
class ExplorerConfig:
    """The section [explorer]: web pages over the log, on the coordinator's port."""

    enabled: bool = True
    """Serve the pages. Their index needs its own process and about 2 kB of disk per log entry."""
    models: tuple[Path, ...] = ()
    """Model folders whose tokenizers decode rollouts. A folder is used for runs that bind its files."""
