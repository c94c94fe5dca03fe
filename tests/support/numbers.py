"""Functions that find the numbers in a page, and the forms in which a page may write the numbers of a record."""

import re

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def numbers_of(value) -> set[str]:
    """Return the forms in which a page may write the number ``value``. If ``value`` is a text, return the numbers in
    the text."""
    try:
        number = abs(float(value))
    except (TypeError, ValueError):
        return set(NUMBER.findall(value)) if isinstance(value, str) else set()
    forms = {f"{number:.1f}", f"{number:.2f}", f"{number:.3g}", f"{number:.2g}", f"{number:g}", f"{100 * number:.0f}"}
    return {found for form in forms for found in NUMBER.findall(form)}


def all_numbers(content) -> set[str]:
    """Return the numbers of all values in ``content``, the content of a JSON file, in the forms in which a page may
    write them."""
    if isinstance(content, dict):
        content = list(content.values())
    return set().union(*map(all_numbers, content)) if isinstance(content, list | tuple) else numbers_of(content)


OF_THE_TEMPLATE = {"95"}
"""The percentage of all confidence intervals, which the template of pages contains."""


def prose(page: str) -> str:
    """Return ``page`` without its links, its code, its numbers of comparisons ("3 of 4 cases"), and its numbers of
    left-out lines ("- 5 more:")."""
    return re.sub(r"\]\([^)]*\)|`[^`]*`|\b\d+ of \d+ cases|- \d+ more:", " ", page)


def told(page: str) -> set[str]:
    """Return the numbers in the prose of a page."""
    return set(NUMBER.findall(prose(page)))
