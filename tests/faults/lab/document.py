"""docs/faults.md: made of all results that are kept, so that text and figures never part."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from .broken import BROKEN
from .groups import ABOUT
from .report import Kept, builds, kept, table, total
from .services import ROOT

DOCUMENT = ROOT / "docs" / "faults.md"
# Lines of one group and exit code that are shown; the others are counted.
SHOWN = 6

CHECKED = """\
After every experiment a checker that shares no code with the product reads the source, the store and the warehouse by \
itself: source rows and warehouse rows are the same, each exactly once, every value equal; the log has no gap, its \
digests chain, only the holder of the newest claim has committed, every slice of a window is there once, the watermark \
went back by command only; every file is what its commit says; the ledger has each commit once; the counts of the \
watermark are the sums; errors are lines, without secrets.

A *run* is a command that a fault struck. `survived`: all of the above holds afterwards. `lost`: a row is missing or \
differs, or the state does not add up. `doubled`: a row is there twice or should not be there. `hung`: a command did \
not end within its bound: a minute, more on a machine that has more to do than it can. `failed`: an exit code or a \
message that should not be. `fixed since`: failed then, and the cause was removed; see the end of this page. `longest \
recovery`: the time of the first command after the fault, `watermark get`, which must find the watermark again; it \
runs at a high priority where the laboratory may give it one (root), its servers do not."""

REPLAY = """\
## Run it, and see a failure again

`make faults MINUTES=30` runs all groups in turn and adds to `tests/faults/results/<seed>.jsonl`, one line as each \
experiment ends; then it writes this page. `GROUP=crash` runs one group, `SEED=7` chooses the order and the chances, \
`JOBS=2` runs two laboratories beside each other, `SOURCE=mariadb` takes the rows from MariaDB (default: MySQL where \
`make setup` could fetch it). Every experiment has a name, such as `crash:s3/load/after/12` (stack, scenario, when, number of the step) or `histories:2017`; `make faults ONLY=crash:s3/load/after/12 SEED=7` runs exactly \
that one again and keeps nothing, `ONLY=crash:s3/load/` all that begin so. Full disks need root (a small tmpfs is \
mounted), wrong clocks fetch Debian's libfaketime. A laboratory that is ended by Ctrl-C or SIGTERM takes its servers \
and folders with it; what one that was killed left behind goes with the next one's start.

What it works with lies in `tests/faults/lab/`: `inject/` is the part inside the product's processes, which numbers \
every durable step and strikes at one of them; `proxy.py` and `httpproxy.py` stand between the product and its services; \
`checker.py` and `truth.py` judge; `spawn.py` forks the real command line from a process that has imported it already."""


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
        "Written by `make faults` from the results in `tests/faults/results/`; every call adds to them.",
        "",
        f"**{whole.runs:,} faulted runs** of the real command in {len({(one['seed'], one['replay'], one['at']) for one in found}):,} experiments, against real {' and '.join(_sources(found))}, "
        f"SeaweedFS, Spark, DuckDB and the Redshift stand-in ({len({one['seed'] for one in found})} seeds): "
        f"**{whole.lost} with rows lost, {whole.doubled} with rows doubled, {whole.hung} hung**, {whole.failed} that "
        f"ended otherwise than they should; {whole.fixed} that failed then and whose cause is removed since.",
        "",
    ]
    if slowest is not None and recovered:
        text += [
            f"The watermark was known again after {slowest['recovery']:.1f} s at most (half of the times within "
            f"{recovered[len(recovered) // 2]:.1f} s, 99 of 100 within {recovered[len(recovered) * 99 // 100]:.1f} s), "
            f"with at most {max(one['cpu'] for one in good):.1f} s of a processor; "
            f"{slowest['load']:.0f} processes waited for each processor at the slowest, {max(loads, default=0):.0f} at "
            f"most.",
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
        f"{' and '.join(_sources(found))}: where the rows came from.",
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
        "`make faults BROKEN=all` takes one protection after the other out of the product. Each must be caught:",
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
    """Exit codes and lines of the commands that failed, as they should, under a fault."""
    counted = Counter[tuple[int, str]]()
    for one in chosen:
        counted.update((code, re.sub(r"\d+", "N", said)) for code, said in one.get("said", ()))
    if not counted:
        return []
    text = ["How commands failed (every one of them left rows and state as they must be):", "",
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
        "Runs that the laboratory itself got wrong; they are not counted.",
        "",
        *(
            f"- `{one['replay']}`, seed {one['seed']}: {_cell(one['became'].removeprefix('void:').strip())}"
            for one in found
        ),
    ]
