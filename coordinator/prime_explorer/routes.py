"""The table of contents: every page, where it is, what makes it and what it looks like.

The description of the pages as JSON, in OpenAPI 3.1, made from the table of pages and what they show. Pure.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prime_explorer import handlers as site
from prime_explorer.handlers import PageParams
from prime_explorer.pages import entries, nodes, overview, runs, search, submissions
from prime_explorer.pages import nodes as accounts
from prime_explorer.pages import overview as network
from prime_explorer.pages import runs as checkpoints
from prime_explorer.pages import submissions as slashes
from prime_runtime.http.json_schema import build_row_schema, list_row_types

PageHandler = Callable[[site.PageContext, PageParams], Awaitable[Any]]
"""A view; None where there is nothing to show."""


@dataclass(frozen=True, slots=True)
class PageRoute:
    """A page: where it is, what makes it, and what it looks like."""

    path: str
    template: str
    handler: PageHandler
    views: tuple[type, ...]
    """What it may come to."""
    help: str
    filters: tuple[str, ...] = ()
    """Parameters behind the question mark."""
    not_found: str = "There is no such page."
    """What is said where nothing is found."""


PAGE_ROUTES = (
    PageRoute("/", "overview.html", site.show_overview, (overview.Overview,), "The network at a glance."),
    PageRoute(
        "/runs/{run}",
        "run.html",
        site.show_run,
        (runs.RunView,),
        "A run.",
        ("before",),
        not_found="There is no such run in this log.",
    ),
    PageRoute(
        "/runs/{run}/checkpoints/{step}",
        "checkpoint.html",
        site.show_checkpoint,
        (checkpoints.CheckpointView,),
        "A checkpoint and its lineage.",
        ("before",),
        not_found="This run has no such checkpoint yet.",
    ),
    PageRoute(
        "/nodes",
        "nodes.html",
        site.show_nodes,
        (nodes.NodesView,),
        "Nodes, those with the most first.",
        ("q", "order", "role", "status", "owner", "after"),
    ),
    PageRoute(
        "/nodes/{node}",
        "node.html",
        site.show_node,
        (nodes.NodeView, accounts.AccountView),
        "A node, or another address that the log knows.",
        not_found="The log does not know this address.",
    ),
    PageRoute(
        "/submissions",
        "submissions.html",
        site.show_submissions,
        (submissions.SubmissionsView,),
        "Submissions, newest first.",
        ("run", "node", "state", "before"),
    ),
    PageRoute(
        "/submissions/{submission}",
        "submission.html",
        site.show_submission,
        (submissions.SubmissionView,),
        "A submission and its judgement.",
        ("first",),
        not_found="No entry of the log has this submission.",
    ),
    PageRoute(
        "/slashes",
        "slashes.html",
        site.show_slashes,
        (slashes.SlashesView,),
        "Slashes, newest first.",
        ("run", "before"),
    ),
    PageRoute(
        "/slashes/{submission}",
        "slash.html",
        site.show_slash,
        (slashes.SlashView,),
        "A slash, from its submission to its end.",
        not_found="This submission was not slashed.",
    ),
    PageRoute(
        "/log",
        "entries.html",
        site.show_entries,
        (entries.EntriesView,),
        "Entries of the log, newest first.",
        ("kind", "run", "about", "author", "before"),
    ),
    PageRoute(
        "/log/heads",
        "heads.html",
        site.show_heads,
        (entries.HeadsView,),
        "Signed tree heads, newest first.",
        ("before", "old", "new"),
    ),
    PageRoute(
        "/log/{index:[0-9]+}",
        "entry.html",
        site.show_entry,
        (entries.EntryView,),
        "An entry of the log.",
        not_found="The log has no entry of this number yet.",
    ),
    PageRoute(
        "/network",
        "network.html",
        site.show_network,
        (network.NetworkView,),
        "Who serves weights.",
        ("run",),
        not_found="There is no such run.",
    ),
    PageRoute("/search", "search.html", site.show_search, (search.SearchView,), "What begins so.", ("q",)),
    PageRoute(
        "/about", "about.html", site.show_about, (site.AboutView,), "What this explorer reads, and how to check it."
    ),
)


JSON_ROOT = "/api/pages"
ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["title", "problem"],
            "properties": {"title": {"type": "string"}, "problem": {"type": "string"}},
        }
    },
}


def build_openapi(version: str) -> dict[str, Any]:
    """The whole document."""
    kinds = [kind for page in PAGE_ROUTES for view in page.views for kind in list_row_types(view)]
    schemas = {kind.__name__: build_row_schema(kind) for kind in kinds if not getattr(kind, "__parameters__", ())}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "explorer",
            "version": version,
            "description": "Every page as JSON. Ids are 0x and hex, times Unix milliseconds, amounts nano tokens.",
        },
        "paths": {get_json_path(page): {"get": _describe_operation(page)} for page in PAGE_ROUTES},
        "components": {"schemas": {**schemas, "Failure": ERROR_SCHEMA}},
    }


def get_json_path(page: PageRoute) -> str:
    """A parameter's pattern is not part of the description."""
    return JSON_ROOT + re.sub(r"\{(\w+):[^}]*\}", r"{\1}", page.path).rstrip("/")


def _describe_operation(page: PageRoute) -> dict[str, Any]:
    refs = [{"$ref": f"#/components/schemas/{view.__name__}"} for view in page.views]
    shown = refs[0] if len(refs) == 1 else {"anyOf": refs}
    places = [(name, "path") for name in re.findall(r"\{(\w+)", page.path)] + [(name, "query") for name in page.filters]
    return {
        "operationId": page.template.removesuffix(".html"),
        "summary": page.help,
        "parameters": [
            {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
            for name, place in places
        ],
        "responses": {
            "200": _describe_response("What the page shows.", shown),
            **{
                status: _describe_response(text, {"$ref": "#/components/schemas/Failure"})
                for status, text in (("400", "A parameter is wrong."), ("404", "Not found."), ("429", "Too fast."))
            },
        },
    }


def _describe_response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
