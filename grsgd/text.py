"""Text for terminals and figures: removal of control characters, and lists of ranks and hosts."""

from collections.abc import Collection


def printable(text: str, most: int = 2000) -> str:
    """Return ``text`` as one line of at most about ``most`` characters. Control characters in the line are replaced by
    escape sequences."""
    text = " ".join(text[: 2 * most].split()) if len(text) > most else " ".join(text.split())
    if len(text) > most:
        text = text[: most - 3] + "..."
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def ranks_in_words(ranks: Collection[int], most: int | None = None) -> str:
    """Return ``ranks`` as text for a sentence: "rank 1", "ranks 1, 2", or "ranks 1, 2 and 5 more" for more than
    ``most`` ranks."""
    named = list(ranks)[:most]
    more = f" and {len(ranks) - len(named)} more" if len(ranks) > len(named) else ""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, named))}{more}"


def hosts_in_words(hosts: Collection[str]) -> str:
    """Return ``hosts`` as text for a sentence: "host a", or "hosts a, b"."""
    return f"host{'s' * (len(hosts) != 1)} {', '.join(hosts)}"
