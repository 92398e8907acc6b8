"""JSON Schema of the rows in a JSON API, from frozen dataclasses and the docstrings of their fields. Pure."""

import ast
import inspect
import textwrap
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

JSON_TYPES: dict[Any, str] = {int: "integer", str: "string", bool: "boolean", float: "number"}


def list_row_types(kind: Any) -> Iterator[type]:
    """The type of a row and of the rows inside it. A generic row is described in place, not listed."""
    if is_dataclass(kind) and isinstance(kind, type):
        yield kind
    if is_dataclass(get_origin(kind) or kind):
        for hint in get_type_hints(get_origin(kind) or kind).values():
            yield from list_row_types(hint)
    for part in get_args(kind):
        yield from list_row_types(part)


def build_row_schema(kind: Any, given: dict[Any, Any] | None = None) -> dict[str, Any]:
    """`given` maps type parameters to types."""
    hints, texts = get_type_hints(kind), _read_field_docs(kind)
    properties = {}
    for field in fields(kind):
        described = {"description": texts[field.name]} if field.name in texts else {}
        properties[field.name] = {**build_type_schema(hints[field.name], given), **described}
    return {
        "type": "object",
        "description": kind.__doc__,
        "required": list(properties),
        "additionalProperties": False,
        "properties": properties,
    }


def build_type_schema(hint: Any, given: dict[Any, Any] | None = None) -> dict[str, Any]:
    hint = given[hint] if given and isinstance(hint, TypeVar) else hint
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (part for part in args if part is not type(None))
        return {"anyOf": [build_type_schema(inner, given), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": build_type_schema(args[0], given)}
    if origin is dict:
        return {"type": "object", "additionalProperties": True if args[1] is Any else build_type_schema(args[1], given)}
    if origin is not None and is_dataclass(origin):
        parameters: tuple[Any, ...] = getattr(origin, "__parameters__", ())
        return build_row_schema(origin, dict(zip(parameters, args, strict=True)))
    if is_dataclass(hint):
        assert isinstance(hint, type)
        return {"$ref": f"#/components/schemas/{hint.__name__}"}
    if issubclass(hint, StrEnum):
        return {"type": "string", "enum": [str(word) for word in hint]}
    return {"type": JSON_TYPES[hint]}


def _read_field_docs(kind: type) -> dict[str, str]:
    """The string literals below the fields of a row."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    texts: dict[str, str] = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts
