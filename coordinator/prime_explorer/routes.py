"""The routes of all pages, and their OpenAPI 3.1 description, which is generated from the routes and views. Pure."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from prime_explorer import handlers
from prime_explorer.pages import entries, live, nodes, overview, proofs, runs, search, submissions, tables
from prime_explorer.pages.tables import Rows
from prime_explorer.params import PARAMS, PageParams
from prime_runtime.http.json_schema import build_row_schema, build_type_schema, list_row_types

PageHandler = Callable[[handlers.PageContext, PageParams], Awaitable[Any]]
"""Returns a view, or None for 404."""

JSON_ROOT = "/api/v1"


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One page: its name, path, handler, and the types of view that the handler returns."""

    name: str
    path: str
    handler: PageHandler
    views: tuple[Any, ...]
    help: str
    filters: tuple[str, ...] = ()
    """Optional query parameters."""
    _: KW_ONLY
    required: tuple[str, ...] = ()
    """Query parameters that must be given."""
    template: str = ""
    """Empty: the page exists only as JSON."""
    not_found: str = "There is no such page."
    """The message of a 404."""
    needs_index: bool = True
    is_immutable: bool = False
    """The view never changes if every parameter is given."""

    @property
    def in_path(self) -> tuple[str, ...]:
        return tuple(re.findall(r"\{(\w+)", self.path))

    @property
    def in_query(self) -> tuple[str, ...]:
        return (*self.required, *self.filters)

    @property
    def json_path(self) -> str:
        """The path of the JSON, without the patterns of parameters."""
        return JSON_ROOT + re.sub(r"\{(\w+):[^}]*\}", r"{\1}", self.path).rstrip("/")


PAGED = ("before", "limit")

PAGE_ROUTES = (
    PageRoute(
        "overview", "/", handlers.show_overview, (overview.Overview,), "The network at a glance.",
        template="overview.html",
    ),
    PageRoute(
        "status", "/status", handlers.show_status, (live.StatusView,), "The coordinator at a glance.",
        needs_index=False,
    ),
    PageRoute(
        "settlement", "/settlement", handlers.show_settlement, (live.SettlementView,),
        "Where value is held, and how far the chain is.", needs_index=False,
    ),
    PageRoute(
        "payout", "/payouts/{run}/{epoch}", handlers.show_payout, (live.PayoutView,),
        "The table behind a payout root on the chain.", not_found="This epoch has no payout root.", needs_index=False,
    ),
    PageRoute("runs", "/runs", handlers.list_runs, (Rows[overview.RunCard],), "Runs, newest first.", PAGED),
    PageRoute(
        "run", "/runs/{run}", handlers.show_run, (runs.RunView,), "A run.", ("before",), template="run.html",
        not_found="There is no such run in this log.",
    ),
    PageRoute(
        "checkpoints", "/checkpoints", handlers.list_checkpoints, (Rows[tables.CheckpointSummary],),
        "Published checkpoints, newest first.", ("run", *PAGED),
    ),
    PageRoute(
        "checkpoint", "/runs/{run}/checkpoints/{step}", handlers.show_checkpoint, (runs.CheckpointView,),
        "A checkpoint and its lineage.", ("before",), template="checkpoint.html",
        not_found="This run has no such checkpoint yet.",
    ),
    PageRoute(
        "nodes", "/nodes", handlers.show_nodes, (nodes.NodesView,), "Nodes, best first.",
        ("q", "order", "role", "status", "phase", "owner", "after", "limit"), template="nodes.html",
    ),
    PageRoute(
        "node", "/nodes/{node}", handlers.show_node, (nodes.NodeView, nodes.AccountView),
        "A node, or another address in the log.", template="node.html", not_found="This address is not in the log.",
    ),
    PageRoute(
        "leases", "/leases", handlers.list_leases, (Rows[tables.LeaseSummary],), "Open leases, newest first.",
        ("run", "node", *PAGED),
    ),
    PageRoute(
        "submissions", "/submissions", handlers.show_submissions, (submissions.SubmissionsView,),
        "Submissions, newest first. A step belongs to a run.", ("run", "node", "step", "state", *PAGED),
        template="submissions.html",
    ),
    PageRoute(
        "submission", "/submissions/{submission}", handlers.show_submission, (submissions.SubmissionView,),
        "A submission and its verdicts.", ("first",), template="submission.html",
        not_found="This submission is not in the log.",
    ),
    PageRoute(
        "verdicts", "/verdicts", handlers.list_verdicts, (Rows[tables.VerdictSummary],),
        "Verdicts, newest first; `node` is the validator.", ("run", "submission", "node", *PAGED),
    ),
    PageRoute(
        "slashes", "/slashes", handlers.show_slashes, (submissions.SlashesView,), "Slashes, newest first.",
        ("run", *PAGED), template="slashes.html",
    ),
    PageRoute(
        "slash", "/slashes/{submission}", handlers.show_slash, (submissions.SlashView,),
        "A slash, from the submission to its end.", template="slash.html",
        not_found="This submission was not slashed.",
    ),
    PageRoute(
        "appeals", "/appeals", handlers.list_appeals, (Rows[tables.AppealSummary],),
        "Appeals, by the newest slash first.", ("run", *PAGED),
    ),
    PageRoute(
        "refused", "/refused", handlers.list_refused, (Rows[live.RefusedFile],),
        "Rollout files that intake refused in the last 30 days, newest first; one page.", ("limit",),
        needs_index=False,
    ),
    PageRoute(
        "entries", "/log", handlers.show_entries, (entries.EntriesView,), "Entries of the log, newest first.",
        ("kind", "run", "about", "author", *PAGED), template="entries.html",
    ),
    PageRoute(
        "heads", "/log/heads", handlers.show_heads, (entries.HeadsView,), "Signed tree heads, newest first.",
        ("old", "new", *PAGED), template="heads.html",
    ),
    PageRoute(
        "head", "/log/head", handlers.show_newest_head, (proofs.HeadView,), "The newest signed tree head.",
        needs_index=False,
    ),
    PageRoute(
        "consistency", "/log/consistency", handlers.show_consistency, (proofs.ConsistencyView,),
        "Proof that an older tree is the beginning of a newer one.", ("new",), required=("old",), needs_index=False,
        is_immutable=True,
    ),
    PageRoute(
        "entry", "/log/{index:[0-9]+}", handlers.show_entry, (entries.EntryView,),
        "An entry of the log, with its inclusion proof.", template="entry.html",
        not_found="The log has no entry with this number yet.",
    ),
    PageRoute(
        "network", "/network", handlers.show_network, (overview.NetworkView,), "The nodes that serve weights.",
        ("run",), template="network.html", not_found="There is no such run.",
    ),
    PageRoute(
        "search", "/search", handlers.show_search, (search.SearchView,), "Everything that starts with the query.",
        ("q",), template="search.html",
    ),
    PageRoute(
        "about", "/about", handlers.show_about, (handlers.AboutView,),
        "What this explorer reads, and how to verify it.", template="about.html",
    ),
)  # fmt: skip


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["title", "field", "problem"],
            "properties": {"title": {"type": "string"}, "field": {"type": "string"}, "problem": {"type": "string"}},
        }
    },
}


def build_openapi(version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    kinds = [kind for page in PAGE_ROUTES for view in page.views for kind in list_row_types(view)]
    schemas = {kind.__name__: build_row_schema(kind) for kind in kinds if not getattr(kind, "__parameters__", ())}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "prime-swarm",
            "version": version,
            "description": (
                "Read-only. Ids are 0x and hex, times Unix milliseconds, amounts nano (10^-9 of the unit of value)."
            ),
        },
        "paths": {page.json_path: {"get": _describe_operation(page)} for page in PAGE_ROUTES},
        "components": {"schemas": {**schemas, "Failure": ERROR_SCHEMA}},
    }


FAILURES = {
    "400": "A parameter is wrong.",
    "404": "Not found, or not known to an explorer that has only a copy of the log.",
    "429": "Too many requests.",
    "503": "Too many requests at once, or the index is being built.",
}


def _describe_operation(page: PageRoute) -> dict[str, Any]:
    shown = [build_type_schema(view) for view in page.views]
    places = [(name, "path") for name in page.in_path] + [(name, "query") for name in page.in_query]
    return {
        "operationId": page.name,
        "summary": page.help,
        "parameters": [
            {
                "name": name,
                "in": place,
                "required": place == "path" or name in page.required,
                "description": PARAMS[name].help,
                "schema": dict(PARAMS[name].schema),
            }
            for name, place in places
        ],
        "responses": {
            "200": _describe_response("The view of the page.", shown[0] if len(shown) == 1 else {"anyOf": shown}),
            **{
                status: _describe_response(text, {"$ref": "#/components/schemas/Failure"})
                for status, text in FAILURES.items()
            },
        },
    }


def _describe_response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
