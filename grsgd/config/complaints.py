"""Error messages of one line for the errors that pydantic finds in a configuration."""

from pydantic import BaseModel, ValidationError

from grsgd.config.sections import Pause, Tail
from grsgd.errors import did_you_mean


def describe(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Return one line that describes all errors which pydantic found in ``model``. ``prefix`` stands before the name of
    each key in the returned line."""
    return "; ".join(describe_one(complaint, model, prefix) for complaint in error.errors())


def describe_one(complaint: dict, model: type[BaseModel], prefix: str) -> str:
    path = [str(part) for part in complaint["loc"] if part != "[key]"]
    key = prefix + ".".join(path)
    if complaint["type"] == "extra_forbidden":
        new = inherited(section(model, path[:-1]), "renamed").get(path[-1])
        if new is not None:
            return f"{key}: is called {new if '.' in new else '.'.join([*key.split('.')[:-1], new])} now"
        return unknown_key(key, path[-1], allowed_keys(model, path[:-1]))
    if complaint["type"] == "missing":
        return f"{key}: missing"
    if complaint["type"] == "model_type":
        allowed = allowed_keys(model, path)
        hint = f" (did you mean {key}.name?)" if "name" in allowed else ""
        return f"{key} = {complaint['input']!r}: is a section{hint}; its keys: {', '.join(allowed)}"
    message = complaint["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if complaint["type"] == "value_error" or isinstance(complaint["input"], dict):
        return f"{key}: {message}"
    new = inherited(model, "renamed_values").get(path[0], {}) if len(path) == 1 else {}
    if isinstance(complaint["input"], str) and complaint["input"] in new:
        message = f"is called {new[complaint['input']]!r} now"
    return f"{key} = {complaint['input']!r}: {message}"


def section(model: type[BaseModel], path: list[str]) -> type:
    """Return the class of the configuration section at ``path``, a list of keys; `object` if the section does not
    exist."""
    for part in path:
        fields = getattr(model, "model_fields", {})
        model = fields[part].annotation if part in fields else object
    return model if isinstance(model, type) else object


def inherited(model: type, name: str) -> dict:
    """Return one dictionary with the entries that the class variable ``name`` (a dictionary) has in ``model`` and in
    its base classes."""
    entries = {}
    for cls in reversed(model.__mro__):
        entries |= vars(cls).get(name, {})
    return entries


def unknown_key(key: str, last: str, allowed: list[str]) -> str:
    return f"{key}: unknown key{did_you_mean(last, allowed)}; allowed: {', '.join(allowed)}"


def allowed_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for part in path:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            for candidate in (Tail, Pause):  # the values of stragglers.tail and stragglers.pause are tables
                if path[1:2] == [candidate.__name__.lower()]:
                    return list(candidate.model_fields)
            return []
        model = annotation
    return list(model.model_fields)
