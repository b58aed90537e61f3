"""Guess which known name was meant by an unknown one."""

from collections.abc import Iterable

SHORTEST = 3  # letters of a name that may begin another, as `nod` begins `nodes`
LEAST = 0.75  # of difflib's ratio; its own 0.6 suggests names that nobody means


def closest(name: str, known_names: Iterable[str]) -> str:
    """The known name that `name` begins, or else is most like; empty if none is similar.

    Of several that it begins, those come first of which it is a whole word: for `batch`
    `batch-size`, not `batchnorm`. Of these the shortest is taken.
    """
    name = name.lower()
    names = sorted(known_names)
    longer = [other for other in names if len(name) >= SHORTEST and other.startswith(name)]
    if longer:
        return min(longer, key=lambda other: (other[len(name) :][:1].isalnum(), len(other)))
    import difflib  # imported here: most commands do not need it

    similar = difflib.get_close_matches(name, names, n=1, cutoff=LEAST)
    return similar[0] if similar else ""
