"""Text that comes from files and from elsewhere, for terminals and figures."""


def printable(text: str, most: int = 2000) -> str:
    """``text`` in one line of ``most`` letters at most, without control characters: a terminal would obey them."""
    text = " ".join(text[: 2 * most].split()) if len(text) > most else " ".join(text.split())
    if len(text) > most:
        text = text[: most - 3] + "..."
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)
