"""The description of the pages as JSON, in OpenAPI 3.1, made from the table of pages and what they show. Pure."""

import re
from typing import Any

from prime_explorer.contents import PAGES, Page
from prime_runtime.row_schemas import describe_row, rows_inside

JSON_ROOT = "/api/pages"
FAILURE = {
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


def describe_pages(version: str) -> dict[str, Any]:
    """The whole document."""
    kinds = [kind for page in PAGES for view in page.views for kind in rows_inside(view)]
    schemas = {kind.__name__: describe_row(kind) for kind in kinds if not getattr(kind, "__parameters__", ())}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "explorer",
            "version": version,
            "description": "Every page as JSON. Ids are 0x and hex, times Unix milliseconds, amounts nano tokens.",
        },
        "paths": {data_path(page): {"get": _operation(page)} for page in PAGES},
        "components": {"schemas": {**schemas, "Failure": FAILURE}},
    }


def data_path(page: Page) -> str:
    """A parameter's pattern is not part of the description."""
    return JSON_ROOT + re.sub(r"\{(\w+):[^}]*\}", r"{\1}", page.path).rstrip("/")


def _operation(page: Page) -> dict[str, Any]:
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
            "200": _answer("What the page shows.", shown),
            **{
                status: _answer(text, {"$ref": "#/components/schemas/Failure"})
                for status, text in (("400", "A parameter is wrong."), ("404", "Not found."), ("429", "Too fast."))
            },
        },
    }


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
