"""The laboratory's groups. A new one is a function that takes a `Lab` and yields `Outcome`s, and a line here."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .changes import changes
from .cluster import cluster
from .crash import crash
from .crowd import crowd
from .fences import fences
from .histories import histories
from .lab import Lab, Outcome
from .network import network
from .sparks import sparks
from .world import world
from .writers import writers

GROUPS: dict[str, Callable[[Lab], Iterator[Outcome]]] = {
    "crash": crash,
    "fences": fences,
    "network": network,
    "spark": sparks,
    "cluster": cluster,
    "crowd": crowd,
    "world": world,
    "changes": changes,
    "writers": writers,
    "histories": histories,
}
# What each group does, for docs/faults.md.
ABOUT = {
    "crash": "The process is killed (SIGKILL) before, while and after each of its durable steps: every object that it "
    "writes or deletes, every statement by which the warehouse changes; or the answer to a commit is lost. Then the "
    "watermark must be known, the same command must go through, and a sync must leave everything right.",
    "fences": "A command is stopped (SIGSTOP) at each of its durable steps, its lease runs out, another command takes "
    "the table, and the first one goes on. And truths that were set back: yesterday's warehouse, a store begun anew, "
    "the newest commit deleted.",
    "network": "Connections to MySQL, the store or the warehouse are reset, stall, are cut, late or slow at a byte by "
    "chance, once or for good; the store answers with errors, loses its answers, ends them half-way, lists late. The "
    "command must end by itself, in a line or two. Its time limits are a tenth of the real ones, so that a stall takes "
    "seconds; where the scenario says so, they are the real ones.",
    "spark": "Workers are killed before, in and after a slice, tasks fail three times or every time, attempts run twice "
    "or run on after another one counted, a worker has no memory left, the driver dies while its tasks write.",
    "cluster": "On a Spark standalone cluster of two workers: an executor is killed in mid-slice or after it wrote, a "
    "machine is lost with its executor, the driver dies while its executors write.",
    "crowd": "Writers at hundreds of rows per second, with long transactions, rollbacks and updates that move rows from "
    "slice to slice, and all commands at once on one table: several syncs, loads, verify, s3clean, set, reset.",
    "world": "The disk of the store, the warehouse or the temporary files is full; the clock is an hour off or jumps "
    "(libfaketime, for one process); the source was restored from a backup or failed over to a replica behind; "
    "its table was truncated and filled again, created anew, altered or swapped for a copy.",
    "changes": "Between two syncs, of which every other one is struck as well, something changes on which rows depend: "
    "columns, `where`, `exclude`, `target` or the mode, in random walks; somebody's hand in the target; privileges are "
    "revoked and granted again; the server moves to another time zone while old connections write on; an application "
    "writes its clock's seconds late. Whatever a refusal says is done, word for word. And a resident sync without a key is "
    "killed between its snapshots, and another user asks every port of a running sync.",
    "writers": "A statement or transaction begins before a sync and commits after it, with a cursor that lies before "
    "rows which the sync has seen: it runs, waits, is idle, is prepared (XA), wrote by way of a trigger or a function, or "
    "under LOCK TABLES; every other sync is killed on top. And syncs on a server that was just restarted or gets a "
    "seventh of its processor. `locks not shown`: the user may not read performance_schema.",
    "histories": "Random sequences of source changes, schema changes, commands and kills from a seed, judged by a "
    "model of its own after every command.",
}
