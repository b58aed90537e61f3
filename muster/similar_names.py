"""The name that was probably meant by one that is not known."""

from collections.abc import Iterable

SHORTEST = 3  # letters of a name that begins another one, as `nod` begins `nodes`
LEAST = 0.75  # of difflib's measure; with its own 0.6 names are suggested that nobody means


def closest(name: str, known: Iterable[str]) -> str:
    """The known name that `name` begins, or else is most like; empty if none is similar.

    Of several that it begins, one of which it is a whole word: `batch-size` for `batch`, not
    `batchnorm`; then the shortest.
    """
    name = name.lower()
    names = sorted(known)
    begun = [one for one in names if len(name) >= SHORTEST and one.startswith(name)]
    if begun:
        return min(begun, key=lambda one: (one[len(name) :][:1].isalnum(), len(one)))
    import difflib  # here: most commands have no use for it

    similar = difflib.get_close_matches(name, names, n=1, cutoff=LEAST)
    return similar[0] if similar else ""
