"""The description of the JSON API in OpenAPI 3.1, made from the table of questions and the rows. Pure."""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

from prime_coordinator.asking import PARAMS, Question
from prime_coordinator.questions import QUESTIONS

ROOT = "/api/v1"
SCALARS: dict[Any, str] = {int: "integer", str: "string", bool: "boolean", float: "number"}
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
    schemas = {kind.__name__: _object(kind) for question in QUESTIONS.values() for kind in _inside(question.row)}
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


def _inside(kind: Any) -> Iterator[type]:
    """A row's type and those of the rows inside it."""
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from _inside(hint)
    for part in get_args(kind):
        yield from _inside(part)


def _object(kind: type) -> dict[str, Any]:
    hints, texts = get_type_hints(kind), _field_texts(kind)
    properties = {}
    for field in fields(kind):
        described = {"description": texts[field.name]} if field.name in texts else {}
        properties[field.name] = {**_schema(hints[field.name]), **described}
    return {
        "type": "object",
        "description": kind.__doc__,
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def _schema(hint: Any) -> dict[str, Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (part for part in args if part is not type(None))
        return {"anyOf": [_schema(inner), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": True if args[1] is Any else _schema(args[1])}
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return {"$ref": f"#/components/schemas/{hint.__name__}"}
    if issubclass(hint, StrEnum):
        return {"type": "string", "enum": [str(word) for word in hint]}
    return {"type": SCALARS[hint]}


def _field_texts(kind: type) -> dict[str, str]:
    """The text literals below the fields of a row."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts
