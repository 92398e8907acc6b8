"""The table of contents: every page, where it is, what makes it and what it looks like."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prime_explorer import site
from prime_explorer.asking import Ask
from prime_explorer.pages import (
    accounts,
    checkpoints,
    entries,
    network,
    nodes,
    overview,
    runs,
    search,
    slashes,
    submissions,
)

Show = Callable[[site.Site, Ask], Awaitable[Any]]
"""A view; None where there is nothing to show."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page: where it is, what makes it, and what it looks like."""

    path: str
    template: str
    show: Show
    views: tuple[type, ...]
    """What it may come to."""
    help: str
    filters: tuple[str, ...] = ()
    """Parameters behind the question mark."""
    missing: str = "There is no such page."
    """What is said where nothing is found."""


PAGES = (
    Page("/", "overview.html", site.show_overview, (overview.Overview,), "The network at a glance."),
    Page(
        "/runs/{run}",
        "run.html",
        site.show_run,
        (runs.RunView,),
        "A run.",
        ("before",),
        missing="There is no such run in this log.",
    ),
    Page(
        "/runs/{run}/checkpoints/{step}",
        "checkpoint.html",
        site.show_checkpoint,
        (checkpoints.CheckpointView,),
        "A checkpoint and its lineage.",
        ("before",),
        missing="This run has no such checkpoint yet.",
    ),
    Page(
        "/nodes",
        "nodes.html",
        site.show_nodes,
        (nodes.NodesView,),
        "Nodes, those with the most first.",
        ("q", "order", "role", "status", "owner", "after"),
    ),
    Page(
        "/nodes/{node}",
        "node.html",
        site.show_node,
        (nodes.NodeView, accounts.AccountView),
        "A node, or another address that the log knows.",
        missing="The log does not know this address.",
    ),
    Page(
        "/submissions",
        "submissions.html",
        site.show_submissions,
        (submissions.SubmissionsView,),
        "Submissions, newest first.",
        ("run", "node", "state", "before"),
    ),
    Page(
        "/submissions/{submission}",
        "submission.html",
        site.show_submission,
        (submissions.SubmissionView,),
        "A submission and its judgement.",
        ("first",),
        missing="No entry of the log has this submission.",
    ),
    Page(
        "/slashes",
        "slashes.html",
        site.show_slashes,
        (slashes.SlashesView,),
        "Slashes, newest first.",
        ("run", "before"),
    ),
    Page(
        "/slashes/{submission}",
        "slash.html",
        site.show_slash,
        (slashes.SlashView,),
        "A slash, from its submission to its end.",
        missing="This submission was not slashed.",
    ),
    Page(
        "/log",
        "entries.html",
        site.show_entries,
        (entries.EntriesView,),
        "Entries of the log, newest first.",
        ("kind", "run", "about", "author", "before"),
    ),
    Page(
        "/log/heads",
        "heads.html",
        site.show_heads,
        (entries.HeadsView,),
        "Signed tree heads, newest first.",
        ("before", "old", "new"),
    ),
    Page(
        "/log/{index:[0-9]+}",
        "entry.html",
        site.show_entry,
        (entries.EntryView,),
        "An entry of the log.",
        missing="The log has no entry of this number yet.",
    ),
    Page(
        "/network",
        "network.html",
        site.show_network,
        (network.NetworkView,),
        "Who serves weights.",
        ("run",),
        missing="There is no such run.",
    ),
    Page("/search", "search.html", site.show_search, (search.SearchView,), "What begins so.", ("q",)),
    Page("/about", "about.html", site.show_about, (site.AboutView,), "What this explorer reads, and how to check it."),
)
