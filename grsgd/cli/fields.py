"""Descriptions of the options of a configuration for users (type, bounds, default and meaning), made from the fields of
the pydantic models."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def describe_fields(section: type[BaseModel], prefix: str = "", indent: str = "    ") -> list[str]:
    """Return a line of text for each option of a section of the configuration. If an option is a table of tables,
    further indented lines describe the keys of the inner tables.

    ``prefix``, such as ``"train."``, is printed before the name of each option.
    """
    lines = []
    for name in section.model_fields:
        lines += describe_field(section, name, prefix, indent)
    return lines


def describe_field(section: type[BaseModel], name: str, prefix: str = "", indent: str = "") -> list[str]:
    """Return a list with the line of text that describes the option ``name`` of a section of the configuration. If the
    option is a table of tables, further lines describe the keys of the inner tables."""
    schema = section.model_json_schema()
    kind, field = schema["properties"][name], section.model_fields[name]
    lines = [f"{indent}{prefix}{name}{default(field)}: {field.description} [{allowed(kind, schema)}]"]
    inner = kind.get("additionalProperties", {})
    if "$ref" in inner:
        table = resolved(inner, schema)
        for key, inside in table["properties"].items():
            lines.append(f"{indent}    {key}: {inside['description']} [{allowed(inside, schema)}]")
    return lines


def default(field: FieldInfo) -> str:
    """Return the default of an option as text after the option's name, such as " = 0.1" or " (must be given)"."""
    if field.is_required():
        return " (must be given)"
    return " (not given)" if field.default is None else f" = {json.dumps(field.default)}"


def allowed(kind: dict, schema: dict) -> str:
    """Return a text on the values that an option of the configuration may have. ``kind`` is the option's entry in
    ``schema``, the JSON schema of its section."""
    kinds = [kind for kind in kind.get("anyOf", [kind]) if kind.get("type") != "null"]
    return " or ".join(allowed_of(kind, schema) for kind in kinds)


def allowed_of(kind: dict, schema: dict) -> str:
    if "enum" in kind:
        return " | ".join(kind["enum"])
    if "const" in kind:
        return json.dumps(kind["const"])
    if "$ref" in kind:
        return f"table of {', '.join(resolved(kind, schema)['properties'])}"
    if kind["type"] == "array":
        return f"list of {allowed(kind.get('items', {'type': 'any'}), schema)}"
    if kind["type"] == "object":
        return f"table of rank = {allowed(kind['additionalProperties'], schema)}"
    name = "true | false" if kind["type"] == "boolean" else kind["type"]
    bounds = [f"{sign} {'2^63' if kind[key] == 2**63 else kind[key]}" for key, sign in BOUNDS.items() if key in kind]
    return f"{name} {', '.join(bounds)}".rstrip()


def resolved(kind: dict, schema: dict) -> dict:
    """Return the JSON schema to which the ``$ref`` in ``kind`` refers."""
    return schema["$defs"][kind["$ref"].rpartition("/")[2]]
