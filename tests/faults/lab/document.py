"""docs/faults.md: generated from all stored results, so that text and figures always agree."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .broken import BROKEN
from .groups import ABOUT
from .report import Kept, builds, kept, table, total
from .services import ROOT

DOCUMENT = ROOT / "docs" / "faults.md"
# Lines shown per group and exit code; the rest are only counted.
SHOWN = 6

CHECKED = """\
After every experiment, a checker that shares no code with the product reads the source, the store and the warehouse \
and checks that:

- warehouse rows equal source rows, each exactly once, every value the same;
- the log has no gap, its digests chain, only the holder of the newest claim has committed, every slice of a window is \
there once, and the watermark went back only by command;
- every file matches its commit, and the ledger has each commit once;
- the watermark's counts are the sums;
- errors are short lines without secrets.

A *run* is a command that a fault struck.

| verdict | meaning |
|---|---|
| survived | all of the above holds afterwards |
| lost | a row is missing or differs, or the state is inconsistent |
| doubled | a row is duplicated, or should not be there |
| hung | a command did not end within a minute (more on an overloaded machine) |
| failed | a wrong exit code or message |
| fixed since | failed then; the cause has been removed (see the end of this page) |

*Longest recovery* is the time of the first command after the fault, `watermark get`, which must find the watermark \
again. It runs at high priority if the laboratory may grant that (root); its servers do not."""

REPLAY = """\
## Run it, and reproduce a failure

`make faults MINUTES=30` runs all groups in turn, adds a line to `tests/faults/results/<seed>.jsonl` as each \
experiment ends, and then writes this page. `GROUP=crash` runs one group, `SEED=7` seeds the order and the random choices, \
`JOBS=2` runs two laboratories side by side, `SOURCE=mariadb` uses MariaDB as the source (default: MySQL if \
`make setup` could fetch it). Every experiment has a name, such as `crash:s3/load/after/12` (stack, scenario, when, \
number of the step) or `histories:2017`. `make faults ONLY=crash:s3/load/after/12 SEED=7` repeats exactly \
that one and records nothing; `ONLY=crash:s3/load/` repeats all that begin so. Full disks need root (to mount a small \
tmpfs); wrong clocks fetch Debian's libfaketime. A laboratory that ends by Ctrl-C or SIGTERM removes its servers \
and folders; what a killed one leaves behind is removed when the next one starts.

The code is in `tests/faults/lab/`: `inject/` runs inside the product's processes, numbers \
every durable step and strikes at one of them; `proxy.py` and `httpproxy.py` sit between the product and its services; \
`checker.py` and `truth.py` judge; `spawn.py` forks the real command from a process that has already imported it."""


def write() -> None:
    """Write the page."""
    found = kept()
    text = [*_head(found), *_builds(), REPLAY, ""]
    for group, about in ABOUT.items():
        chosen = [one for one in found if one["group"] == group]
        if chosen:
            text += [
                f"## {group}",
                "",
                about,
                "",
                *table(chosen, "fault", "step"),
                "",
                *table(chosen, "scenario"),
                "",
            ]
            text += _lines(chosen)
    text += ["## Failures", "", *_failures(found), "", "## Void", "", *_void()]
    DOCUMENT.write_text("\n".join(text) + "\n")


def _head(found: Sequence[Kept]) -> list[str]:
    whole = total(found)
    loads = [one["load"] for one in found if one["load"]]
    good = [one for one in found if one["recovery"] and not one.get("became")]
    slowest = max(good, key=lambda one: one["recovery"], default=None)
    recovered = sorted(one["recovery"] for one in good)
    text = [
        "# What Floodmark was put through",
        "",
        "`make faults` writes this page from the results in `tests/faults/results/`; every call adds to them.",
        "",
        f"**{whole.runs:,} faulted runs** of the real command in {len({(one['seed'], one['replay'], one['at']) for one in found}):,} experiments, against real {' and '.join(_sources(found))}, "
        f"SeaweedFS, Spark, DuckDB and the Redshift stand-in ({len({one['seed'] for one in found})} seeds): "
        f"**{whole.lost} lost rows, {whole.doubled} duplicated rows, {whole.hung} hung**, {whole.failed} "
        f"ended with a wrong exit code or message; {whole.fixed} failed then, and their causes have been removed.",
        "",
    ]
    if slowest is not None and recovered:
        text += [
            f"The watermark was known again after {slowest['recovery']:.1f} s at most (median "
            f"{recovered[len(recovered) // 2]:.1f} s, p99 {recovered[len(recovered) * 99 // 100]:.1f} s), "
            f"with at most {max(one['cpu'] for one in good):.1f} s of CPU. Up to {max(loads, default=0):.0f} processes "
            f"per core were waiting, {slowest['load']:.0f} during the slowest recovery.",
            "",
        ]
    counted = Counter[tuple[str, str]]()
    for one in found:
        counted[one["group"], _stack(one)] += one["runs"]
        counted[one["group"], one["source"]] += one["runs"]
    columns = [*sorted({_stack(one) for one in found}), *_sources(found)]
    rows = [[group, *(str(counted[group, c] or "") for c in columns)] for group in ABOUT]
    rows.append(["all", *(f"{sum(counted[group, c] for group in ABOUT):,}" for c in columns)])
    text += [CHECKED, "", f"| group | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    return [
        *text,
        *(f"| {' | '.join(row)} |" for row in rows if any(row[1:])),
        "",
        "`folder`: a folder as the store, DuckDB. `s3`: SeaweedFS and DuckDB. `redshift`: SeaweedFS and the stand-in. "
        f"{' and '.join(_sources(found))}: the source.",
        "",
    ]


def _sources(found: Sequence[Kept]) -> list[str]:
    return sorted({one["source"] for one in found}, reverse=True)


def _stack(one: Kept) -> str:
    return str(one["scenario"]).rpartition("[")[2].rstrip("]")


def _builds() -> list[str]:
    """How the laboratory itself was tested."""
    text = [
        "## Is the laboratory any good?",
        "",
        "`make faults BROKEN=all` disables one protection of the product after the other. Each must be caught:",
        "",
        "| broken | what it is | caught by | after | the checker said |",
        "|---|---|---|--:|---|",
    ]
    for one in builds():
        caught = f"`{one['by']}`" if one["by"] else "**not caught**"
        after = f"{one['runs']} run{'s' * (one['runs'] != 1)}, {one['seconds']} s"
        said = _cell(str(one["problem"] or ""))[:160]
        text.append(f"| `{one['build']}` | {BROKEN[one['build']][0]} | {caught} | {after} | {said} |")
    return [*text, ""]


def _lines(chosen: Sequence[Kept]) -> list[str]:
    """Exit codes and error lines of the commands that failed under a fault, as they should."""
    counted = Counter[tuple[int, str]]()
    for one in chosen:
        counted.update((code, re.sub(r"\d+", "N", said)) for code, said in one.get("said", ()))
    if not counted:
        return []
    text = ["How commands failed (each left rows and state as they must be):", "",
            "| exit code | times | line |", "|--:|--:|---|"]  # fmt: skip
    for code in sorted({code for code, _ in counted}):
        mine = [(said, n) for (c, said), n in counted.most_common() if c == code]
        text += [f"| {code} | {n} | {_cell(said)} |" for said, n in mine[:SHOWN]]
        if rest := mine[SHOWN:]:
            text.append(f"| {code} | {sum(n for _, n in rest)} | {len(rest)} other lines |")
    return [*text, ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _failures(found: Sequence[Kept]) -> list[str]:
    return [
        f"- `{one['replay']}`, seed {one['seed']} ({one['verdict']}): "
        + _cell(one.get("became") or f"**open**: {one['problems'][0][:300]}")
        for one in found
        if one["verdict"] != "survived"
    ] or ["None."]


def _void() -> list[str]:
    found = kept(void=True)
    return [
        "Runs in which the laboratory itself was wrong; they don't count.",
        "",
        *(
            f"- `{one['replay']}`, seed {one['seed']}: {_cell(one['became'].removeprefix('void:').strip())}"
            for one in found
        ),
    ]
