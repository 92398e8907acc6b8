"""The routes of all pages, and their OpenAPI 3.1 description, which is generated from the routes and views. Pure."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from prime_explorer import handlers
from prime_explorer.handlers import PageParams
from prime_explorer.pages import entries, nodes, overview, runs, search, submissions
from prime_runtime.http.json_schema import build_row_schema, list_row_types

PageHandler = Callable[[handlers.PageContext, PageParams], Awaitable[Any]]
"""Returns a view, or None for 404."""


@dataclass(frozen=True, slots=True)
class PageRoute:
    """One page: its path, handler, template and views."""

    path: str
    template: str
    handler: PageHandler
    views: tuple[type, ...]
    """The types of view that the handler returns."""
    help: str
    filters: tuple[str, ...] = ()
    """Query parameters."""
    not_found: str = "There is no such page."
    """The message of a 404."""


PAGE_ROUTES = (
    PageRoute("/", "overview.html", handlers.show_overview, (overview.Overview,), "The network at a glance."),
    PageRoute(
        "/runs/{run}",
        "run.html",
        handlers.show_run,
        (runs.RunView,),
        "A run.",
        ("before",),
        not_found="There is no such run in this log.",
    ),
    PageRoute(
        "/runs/{run}/checkpoints/{step}",
        "checkpoint.html",
        handlers.show_checkpoint,
        (runs.CheckpointView,),
        "A checkpoint and its lineage.",
        ("before",),
        not_found="This run has no such checkpoint yet.",
    ),
    PageRoute(
        "/nodes",
        "nodes.html",
        handlers.show_nodes,
        (nodes.NodesView,),
        "Nodes, best first.",
        ("q", "order", "role", "status", "owner", "after"),
    ),
    PageRoute(
        "/nodes/{node}",
        "node.html",
        handlers.show_node,
        (nodes.NodeView, nodes.AccountView),
        "A node, or another address in the log.",
        not_found="This address is not in the log.",
    ),
    PageRoute(
        "/submissions",
        "submissions.html",
        handlers.show_submissions,
        (submissions.SubmissionsView,),
        "Submissions, newest first.",
        ("run", "node", "state", "before"),
    ),
    PageRoute(
        "/submissions/{submission}",
        "submission.html",
        handlers.show_submission,
        (submissions.SubmissionView,),
        "A submission and its verdicts.",
        ("first",),
        not_found="This submission is not in the log.",
    ),
    PageRoute(
        "/slashes",
        "slashes.html",
        handlers.show_slashes,
        (submissions.SlashesView,),
        "Slashes, newest first.",
        ("run", "before"),
    ),
    PageRoute(
        "/slashes/{submission}",
        "slash.html",
        handlers.show_slash,
        (submissions.SlashView,),
        "A slash, from the submission to its end.",
        not_found="This submission was not slashed.",
    ),
    PageRoute(
        "/log",
        "entries.html",
        handlers.show_entries,
        (entries.EntriesView,),
        "Entries of the log, newest first.",
        ("kind", "run", "about", "author", "before"),
    ),
    PageRoute(
        "/log/heads",
        "heads.html",
        handlers.show_heads,
        (entries.HeadsView,),
        "Signed tree heads, newest first.",
        ("before", "old", "new"),
    ),
    PageRoute(
        "/log/{index:[0-9]+}",
        "entry.html",
        handlers.show_entry,
        (entries.EntryView,),
        "An entry of the log.",
        not_found="The log has no entry with this number yet.",
    ),
    PageRoute(
        "/network",
        "network.html",
        handlers.show_network,
        (overview.NetworkView,),
        "The nodes that serve weights.",
        ("run",),
        not_found="There is no such run.",
    ),
    PageRoute(
        "/search",
        "search.html",
        handlers.show_search,
        (search.SearchView,),
        "Everything that starts with the query.",
        ("q",),
    ),
    PageRoute(
        "/about",
        "about.html",
        handlers.show_about,
        (handlers.AboutView,),
        "What this explorer reads, and how to verify it.",
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
    """The OpenAPI document."""
    kinds = [kind for page in PAGE_ROUTES for view in page.views for kind in list_row_types(view)]
    schemas = {kind.__name__: build_row_schema(kind) for kind in kinds if not getattr(kind, "__parameters__", ())}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "explorer",
            "version": version,
            "description": (
                "Every page as JSON. Ids are 0x and hex, times Unix milliseconds, amounts nano (10^-9 of the unit)."
            ),
        },
        "paths": {get_json_path(page): {"get": _describe_operation(page)} for page in PAGE_ROUTES},
        "components": {"schemas": {**schemas, "Failure": ERROR_SCHEMA}},
    }


def get_json_path(page: PageRoute) -> str:
    """The path of the JSON page, without the patterns of parameters."""
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
            "200": _describe_response("The view of the page.", shown),
            **{
                status: _describe_response(text, {"$ref": "#/components/schemas/Failure"})
                for status, text in (
                    ("400", "A parameter is wrong."),
                    ("404", "Not found."),
                    ("429", "Too many requests."),
                )
            },
        },
    }


def _describe_response(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
