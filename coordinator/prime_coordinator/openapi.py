"""The description of the JSON API in OpenAPI 3.1, made from the table of questions and the rows. Pure."""

from typing import Any

from prime_coordinator.asking import PARAMS, Question
from prime_coordinator.questions import QUESTIONS
from prime_runtime.row_schemas import describe_row, rows_inside

ROOT = "/api/v1"
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["field", "problem"],
            "properties": {"field": {"type": "string"}, "problem": {"type": "string"}},
        }
    },
}


def describe_api(version: str) -> dict[str, Any]:
    """The whole document."""
    paths = {ROOT + question.path: {"get": _operation(name, question)} for name, question in QUESTIONS.items()}
    schemas = {
        kind.__name__: describe_row(kind) for question in QUESTIONS.values() for kind in rows_inside(question.row)
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "prime-coordinator",
            "version": version,
            "description": "Read-only. Ids are 0x and hex, times are Unix milliseconds, amounts are nano tokens.",
        },
        "paths": paths,
        "components": {"schemas": {**schemas, "Error": ERROR}},
    }


def _operation(name: str, question: Question) -> dict[str, Any]:
    row = {"$ref": f"#/components/schemas/{question.row.__name__}"}
    answers = {"200": _answer("The answer.", _page(row) if question.is_paged else row)}
    for status, text in (("400", "A parameter is wrong."), ("404", "Not known here."), ("429", "Too many questions.")):
        answers[status] = _answer(text, {"$ref": "#/components/schemas/Error"})
    places = [*((each, "path") for each in question.in_path), *((each, "query") for each in question.in_query)]
    return {
        "operationId": name,
        "summary": question.help,
        "parameters": [_parameter(each, place, question) for each, place in places],
        "responses": answers,
    }


def _parameter(name: str, place: str, question: Question) -> dict[str, Any]:
    return {
        "name": name,
        "in": place,
        "required": place == "path" or name in question.required,
        "description": PARAMS[name].help,
        "schema": dict(PARAMS[name].schema),
    }


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _page(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["rows", "next"],
        "additionalProperties": False,
        "properties": {
            "rows": {"type": "array", "items": row},
            "next": {"type": ["string", "null"], "description": "`cursor` of the next page; null after the last."},
        },
    }
