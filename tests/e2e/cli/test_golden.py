"""What the commands print, whole, beside what was accepted: `FLOODMARK_GOLDEN=1` writes what they print now.

One story of three tables, as text and as JSON. Times, ids, sizes and places differ from run to run, so they are masked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from floodmark.setup.services.databases import MariaDB
from tests.conftest import Database, Result, Workspace

GOLDEN = Path(__file__).parents[2] / "golden" / "cli"
# What differs between two runs of the same commands, and what stands for it.
MASKS = (
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "UUID"),
    (r"\b\d{8}_\d{6}_[0-9a-f]{4}\b", "RUN"),
    (r"_\d{8}\.json\b", "_DAY.json"),
    (r"\b20(?!25-0[1-6])\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( UTC|Z)?", "TIME"),
    (r"[^/\s\"]+\.parquet", "FILE.parquet"),
    (r"\b[0-9a-f]{16,64}\b", "HASH"),
    (r"\b\d+(\.\d+)? (kB|B|MB)\b", "SIZE"),
    (r"\b[\d,]+(\.\d+)? (rows|files)/s", "SPEED"),
    (r"\b\d+(\.\d+)? (ms|s|min|h)( \d+ (s|min))?\b", "SPAN"),
    (r'("(?:\w*bytes\w*|\w*seconds|pid|extract|load|verify)": )\d+(\.\d+)?', r"\1 0"),
    (r'("host": )"[^"]*"', r"\1HOST"),
    (r"\(pid \d+\)", "(pid 0)"),
    (r"\b\d\.\d{3}\b", "SECONDS"),
    (r"(?m)^(\w+\t\d*\t\d*)\t\d+\t", r"\1\tSIZE\t"),
    (r"on host \S+", "on host HOST"),
)
STORY: tuple[tuple[str, str], ...] = (
    ("plan-first", "plan -t orders"),
    ("plan-first-json", "plan -t orders --json"),
    ("dry-run", "sync --all --dry-run"),
    ("sync-first", "sync --all"),
    ("backups-json", "watermark backups -t countries --json"),
    ("sync-idle", "sync --all"),
    ("sync-idle-json", "sync -t orders --json"),
    ("get", "watermark get -t orders"),
    ("get-json", "watermark get -t orders --show-files --json"),
    ("get-snapshot", "watermark get -t countries"),
    ("list", "watermark list"),
    ("list-json", "watermark list -t orders --json"),
    ("verify-equal", "verify --all"),
    ("CHANGE", ""),
    ("verify-differs", "verify -t orders"),
    ("verify-differs-json", "verify -t orders --json"),
    ("sync-change", "sync -t orders -v"),
    ("sync-change-json", "sync -t events --json"),
    ("backup-only", "sync -t orders --since 2025-01-01 --backup-only"),
    ("files", "s3clean list -t orders"),
    ("files-json", "s3clean list -t events --json"),
    ("list-waiting", "watermark list"),
    ("load-only", "sync -t orders --redshift-only --json"),
    ("verify-repair", "verify -t orders --repair"),
    ("history", "watermark history -t orders"),
    ("history-json", "watermark history -t orders --json"),
    ("backups", "watermark backups -t orders"),
    ("validate", "watermark validate"),
    ("validate-json", "watermark validate -t orders --json"),
    ("drill", "watermark drill -t orders"),
    ("drill-json", "watermark drill -t orders --json"),
    ("set", "watermark set -t orders --timestamp 2025-03-01"),
    ("get-set", "watermark get -t orders"),
    ("restore", "watermark restore -t orders --commit 2"),
    ("reset", "watermark reset -t orders --json"),
    ("retire", "watermark retire -t events"),
    ("clean", "s3clean clean -t countries --force"),
    ("cleanup", "watermark cleanup --dry-run"),
    ("system-set", "watermark set --timestamp 2025-02-01 --force"),
    ("system-get-json", "watermark get --json"),
    ("unknown-table", "sync -t nowhere"),
    ("unknown-table-json", "sync -t nowhere --json"),
    ("usage", "sync"),
    ("wrong-option-json", "sync -t orders --until 2025-01-01 --json"),
    ("system-clear", "watermark clear --force"),
    ("system-clear-json", "watermark clear --force --json"),
    ("set-json", "watermark set -t orders --timestamp 2025-03-01 --json"),
    ("set-by-id", "watermark set -t events --id 7"),
    ("restore-json", "watermark restore -t orders --commit 2 --json"),
    ("restore-unknown", "watermark restore -t orders --commit 99"),
    ("retire-json", "watermark retire -t events --json"),
    ("list-retired", "watermark list"),
    ("sync-again-json", "sync --all --json"),
    ("reset-load", "watermark reset -t orders --redshift-only"),
    ("reset-load-json", "watermark reset -t countries --redshift-only --json"),
    ("reset-extract", "watermark reset -t orders --mysql-only"),
    ("sync-everything", "sync --all -v"),
    ("verify-json", "verify --all --json"),
    ("clean-dry-run", "s3clean clean -t orders --dry-run"),
    ("clean-json", "s3clean clean -t countries -t events --force --json"),
    ("clean-all", "s3clean clean-all --force"),
    ("clean-nothing", "s3clean clean-all --force"),
    ("orphans", "s3clean orphans -t orders -t events --force"),
    ("cleanup-json", "watermark cleanup --days 1 --force --json"),
    ("drill-all-json", "watermark drill --all --json"),
    ("alerts-none", "alerts check"),
    ("MORE", ""),
    ("backup-only-json", "sync -t events --backup-only --json"),
    ("LOSS", ""),
    ("alerts-check", "alerts check"),
    ("alerts-check-json", "alerts check --json"),
    ("alerts-test", "alerts test"),
    ("sync-asks", "sync --all"),
    ("accept", "watermark accept -t orders"),
    ("accept-json", "watermark accept -t countries --json"),
    ("accept-source", "watermark accept -t events --json"),
    ("get-failed", "watermark get -t countries"),
    ("validate-finds", "watermark validate"),
    ("validate-finds-json", "watermark validate -t events --json"),
    ("validate-repair", "watermark validate -t events --repair"),
    ("backups-damaged", "watermark backups -t events"),
    ("move-nowhere", "watermark move"),
    ("MOVE", ""),
    ("moved-away", "sync -t countries"),
    ("move", "watermark move"),
    ("move-json", "watermark move --json"),
)


def change(workspace: Workspace) -> None:
    """New rows at the source, and one that differs in the warehouse."""
    workspace.execute(
        "INSERT INTO orders VALUES (2000, 1, 'new', '2025-04-01')",
        "INSERT INTO events (what) VALUES ('more')",
    )
    with duckdb.connect(str(workspace.warehouse)) as link:
        link.execute("UPDATE orders SET note = 'changed by hand' WHERE id = 7")


def more(workspace: Workspace) -> None:
    workspace.execute("INSERT INTO events (what) VALUES ('late')")


def lose(workspace: Workspace) -> None:
    """Columns that nobody was asked about, a file and copies that are gone or damaged; and someone to tell."""
    workspace.execute("ALTER TABLE orders ADD COLUMN extra INT", "ALTER TABLE countries ADD COLUMN extra INT")
    workspace.write(
        defaults={"schema_changes": "ask"}, tables={"orders": {}, "countries": {}}, alerts={"behind": "15m"}
    )
    store = workspace.folder / "lake"
    next((store / "data" / "shop.events").rglob("*.parquet")).unlink()
    (store / "data" / "shop.events" / "left.parquet").write_bytes(b"nothing")
    (store / "watermark" / "tables" / "shop.events.json").write_bytes(b"{")


def move(workspace: Workspace) -> None:
    workspace.write(warehouse={"url": "duckdb:///other.duckdb"})


EVENTS: dict[str, Callable[[Workspace], None]] = {"CHANGE": change, "MORE": more, "LOSS": lose, "MOVE": move}


@pytest.fixture
def told(
    mariadb: MariaDB,
    make_workspace: Callable[..., Workspace],
    command: Callable[..., Result],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, str]]:
    """What each command of the story prints."""
    monkeypatch.setenv("COLUMNS", "100")
    mariadb.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop")
    workspace = make_workspace(Database(mariadb, "shop"))
    workspace.execute(
        "CREATE TABLE orders (id BIGINT PRIMARY KEY, amount DECIMAL(12,2) NOT NULL, note TEXT, update_at DATETIME NOT NULL, KEY (update_at))",
        "INSERT INTO orders SELECT seq, seq / 100, CONCAT('n', seq), '2025-03-01' + INTERVAL seq MINUTE FROM seq_1_to_1000",
        "CREATE TABLE events (id BIGINT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(20))",
        "INSERT INTO events (what) SELECT 'seen' FROM seq_1_to_50",
        "CREATE TABLE countries (code CHAR(2) PRIMARY KEY, name VARCHAR(40))",
        "INSERT INTO countries VALUES ('de', 'Germany'), ('fr', 'France')",
    )
    workspace.write(defaults={"slice_rows": 500, "overlap_seconds": 0, "settle_seconds": 0})
    found: dict[str, str] = {}
    for name, line in STORY:
        if name in EVENTS:
            EVENTS[name](workspace)
            continue
        done = command(workspace, *line.split())
        # Tables run side by side, so what is printed on the way has no order; nor have the names of files.
        said = sorted(done.stderr.splitlines())
        listed = sorted(done.stdout.splitlines()) if name == "files" else done.stdout.splitlines()
        text = "\n".join((f"$ floodmark {line}", *listed, *said, f"exit code {done.code}"))
        found[name] = masked(text.replace(str(workspace.folder), "/folder"))
    yield found
    mariadb.execute("DROP DATABASE shop")


def masked(text: str) -> str:
    """The text without what differs from run to run; columns of tables shrink with their contents."""
    for pattern, word in MASKS:
        text = re.sub(pattern, word, text)
    return "\n".join(re.sub(r"(?<=\S) {2,}", "  ", line).rstrip() for line in text.splitlines()) + "\n"


def test_commands_print_what_was_accepted(told: dict[str, str]) -> None:
    if os.environ.get("FLOODMARK_GOLDEN"):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        for name, text in told.items():
            (GOLDEN / f"{name}.txt").write_text(text)
    accepted = {file.stem: file.read_text() for file in GOLDEN.glob("*.txt")}
    assert told.keys() == accepted.keys()
    for name, text in told.items():
        assert text == accepted[name], name
