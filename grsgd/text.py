"""Text for terminals and figures: foreign lines made printable, and names of ranks."""

from collections.abc import Collection


def printable(text: str, most: int = 2000) -> str:
    """Return ``text`` in one line of at most ``most`` letters, without control characters that a terminal would
    obey."""
    text = " ".join(text[: 2 * most].split()) if len(text) > most else " ".join(text.split())
    if len(text) > most:
        text = text[: most - 3] + "..."
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def ranks_in_words(ranks: Collection[int], most: int | None = None) -> str:
    """Return the ranks for a sentence, ``most`` of them by number: "rank 1", "ranks 1, 2", "ranks 1, 2 and 5 more"."""
    named = list(ranks)[:most]
    more = f" and {len(ranks) - len(named)} more" if len(ranks) > len(named) else ""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, named))}{more}"
