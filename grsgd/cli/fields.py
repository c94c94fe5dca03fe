"""An option as a user may write it: its type, bounds, default and description, from the fields of its section."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

BOUNDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def describe_fields(section: type[BaseModel], prefix: str = "", indent: str = "    ") -> list[str]:
    """Return a line for each option of a section, and below it, further indented, those of tables in it.

    ``prefix``: before the name of each, such as ``"train."``.
    """
    lines = []
    for name in section.model_fields:
        lines += describe_field(section, name, prefix, indent)
    return lines


def describe_field(section: type[BaseModel], name: str, prefix: str = "", indent: str = "") -> list[str]:
    """Return the line of one option of a section, and those of what is in it if it is a table of tables."""
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
    """Say, as TOML has it, what an option is if it is not given."""
    if field.is_required():
        return " (must be given)"
    return " (not given)" if field.default is None else f" = {json.dumps(field.default)}"


def allowed(kind: dict, schema: dict) -> str:
    """Say what values an option takes; ``kind``: its part of the JSON ``schema`` of its section."""
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
    """Return the schema that a ``$ref`` means."""
    return schema["$defs"][kind["$ref"].rpartition("/")[2]]
