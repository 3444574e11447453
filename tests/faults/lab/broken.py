"""The protections that the laboratory removes from the product to test itself, and where each must be caught."""

from __future__ import annotations

# The switch, what it breaks, and the experiments that must catch it (prefixes of their replays).
BROKEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "strict-cursor": (
        "`cursor > x` alone instead of (cursor, key): the other rows of a shared timestamp are skipped",
        ("crash:folder/sync --limit/", "histories"),
    ),
    "session-zone": (
        "the bound in the session's zone instead of the server's: it lies above what can still commit",
        ("writers:folder/a long statement/", "histories"),
    ),
    "any-reader": (
        "any read-only transaction counts as a reader, even a statement that loads a definition (MySQL)",
        ("writers:folder/a cold server/",),
    ),
    "ledger-outside": (
        "the ledger's rows in a separate transaction, after the data's",
        ("crash:folder/load without a key/",),
    ),
    "ledger-number": (
        "a commit counts as loaded by its number alone",
        ("fences:folder/the log begins anew", "fences:folder/the store begins anew"),
    ),
    "commit-first": (
        "files are uploaded after the commit that names them",
        ("crash:folder/incremental sync/",),
    ),
    "overwrite": (
        "a plain overwrite instead of create-if-absent",
        ("fences:folder/sync, by another sync/", "fences:folder/sync without a key, by another/"),
    ),
    "no-claim": (
        "a claim is no fence: a run that finds its number taken commits behind it",
        ("fences:folder/sync, by another sync/", "fences:folder/sync without a key, by another/"),
    ),
    "next-number": (
        "the next number instead of the same one after a lost answer",
        ("crash:folder/incremental sync/lost/", "crash:folder/incremental sync/"),
    ),
    "believed-recipe": (
        "the recipe of earlier rows is not compared with the present configuration and columns",
        ("changes:recipe, upsert/", "changes:recipe, keyless/"),
    ),
    "believed-target": (
        "the target's columns are not compared with those of the last load",
        ("changes:target, a column dropped/",),
    ),
}
