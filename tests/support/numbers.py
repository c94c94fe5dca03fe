"""The numbers in a page, and the ways in which a page may write the numbers of a record."""

import re

NUMBER = re.compile(r"\d+(?:\.\d+)?")


def numbers_of(value) -> set[str]:
    """Return the ways in which a page may write a number, or the numbers in a text."""
    try:
        number = abs(float(value))
    except (TypeError, ValueError):
        return set(NUMBER.findall(value)) if isinstance(value, str) else set()
    forms = {f"{number:.1f}", f"{number:.2f}", f"{number:.3g}", f"{number:.2g}", f"{number:g}", f"{100 * number:.0f}"}
    return {found for form in forms for found in NUMBER.findall(form)}


def all_numbers(content) -> set[str]:
    """Return the numbers of all values in a JSON file, in the ways in which a page may write them."""
    if isinstance(content, dict):
        content = list(content.values())
    return set().union(*map(all_numbers, content)) if isinstance(content, list | tuple) else numbers_of(content)


OF_THE_TEMPLATE = {"95"}
"""The percentage of all intervals, which the template of pages contains."""


def prose(page: str) -> str:
    """Return a page without its links, the names of its scales, and the numbers of its cases and lines."""
    return re.sub(r"\]\([^)]*\)|`[^`]*`|\b\d+ of \d+ cases|- \d+ more:", " ", page)


def told(page: str) -> set[str]:
    """Return the numbers that a page tells."""
    return set(NUMBER.findall(prose(page)))
