"""Everything that can be asked of a coordinator, in one table: the API, its description and the commands follow it."""

from prime_coordinator import answers, rows, settlement_rows
from prime_coordinator.asking import Question

QUESTIONS: dict[str, Question] = {
    "status": Question(
        path="/status", row=rows.StatusRow, answer=answers.get_status, help="The coordinator at a glance."
    ),
    "settlement": Question(
        path="/settlement",
        row=settlement_rows.SettlementRow,
        answer=settlement_rows.get_settlement,
        help="Who holds the value, and what of the log was brought to the chain.",
    ),
    "payout": Question(
        path="/payouts/{run}/{epoch}",
        row=settlement_rows.PayoutRow,
        answer=settlement_rows.get_payout,
        help="What a payout root on the chain was made of.",
    ),
    "runs": Question(path="/runs", row=rows.RunRow, answer=answers.list_runs, is_paged=True, help="All runs."),
    "run": Question(
        path="/runs/{run}", row=rows.RunDetail, answer=answers.get_run, help="A run, its terms and its steps."
    ),
    "nodes": Question(
        path="/nodes",
        row=rows.NodeRow,
        answer=answers.list_nodes,
        is_paged=True,
        filters=("status", "phase", "role", "owner"),
        help="Nodes, in the order they came.",
    ),
    "node": Question(
        path="/nodes/{node}", row=rows.NodeDetail, answer=answers.get_node, help="All that is known of a node."
    ),
    "leases": Question(
        path="/leases",
        row=rows.LeaseRow,
        answer=answers.list_leases,
        is_paged=True,
        filters=("run", "node"),
        help="Leases that are open.",
    ),
    "submissions": Question(
        path="/submissions",
        row=rows.SubmissionRow,
        answer=answers.list_submissions,
        is_paged=True,
        filters=("run", "node", "step", "progress"),
        help="Submissions, newest first.",
    ),
    "submission": Question(
        path="/submissions/{submission}",
        row=rows.SubmissionDetail,
        answer=answers.get_submission,
        help="A submission and its judgement.",
    ),
    "verdicts": Question(
        path="/verdicts",
        row=rows.VerdictRow,
        answer=answers.list_verdicts,
        is_paged=True,
        filters=("run", "submission", "node"),
        help="Verdicts, newest first; `node` is the validator.",
    ),
    "slashes": Question(
        path="/slashes",
        row=rows.SlashRow,
        answer=answers.list_slashes,
        is_paged=True,
        filters=("run",),
        help="Slashes, newest first.",
    ),
    "slash": Question(
        path="/slashes/{submission}", row=rows.SlashRow, answer=answers.get_slash, help="The slash of a submission."
    ),
    "appeals": Question(
        path="/appeals",
        row=rows.AppealRow,
        answer=answers.list_appeals,
        is_paged=True,
        filters=("run",),
        help="Appeals, newest first.",
    ),
    "checkpoints": Question(
        path="/checkpoints",
        row=rows.CheckpointRow,
        answer=answers.list_checkpoints,
        is_paged=True,
        filters=("run",),
        help="Published checkpoints, newest first.",
    ),
    "refused": Question(
        path="/refused",
        row=rows.RefusedRow,
        answer=answers.list_refused,
        is_paged=True,
        help="Rollout files that intake refused in the last 30 days, newest first; one page.",
    ),
    "entries": Question(
        path="/log/entries",
        row=rows.EntryRow,
        answer=answers.list_entries,
        is_paged=True,
        filters=("kind", "author", "run", "subject"),
        help="Entries of the log, newest first.",
    ),
    "entry": Question(
        path="/log/entries/{index}",
        row=rows.EntryDetail,
        answer=answers.get_entry,
        help="An entry, with its inclusion proof.",
    ),
    "head": Question(path="/log/head", row=rows.HeadRow, answer=answers.get_head, help="The newest signed tree head."),
    "consistency": Question(
        path="/log/consistency",
        row=rows.ConsistencyRow,
        answer=answers.get_consistency,
        required=("old",),
        filters=("new",),
        is_settled=True,
        help="Proof that an older tree is the beginning of a newer one.",
    ),
}
