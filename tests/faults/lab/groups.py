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
    "crash": "The process is killed (SIGKILL) before, during and after each of its durable steps: every object that it "
    "writes or deletes, every statement that changes the warehouse; or the answer to a commit is lost. Afterwards the "
    "watermark must be known, the same command must succeed, and a sync must leave everything right.",
    "fences": "A command is stopped (SIGSTOP) at each of its durable steps, its lease expires, another command takes "
    "the table, and the first one resumes. Also state that was set back: yesterday's warehouse, a new store, "
    "the newest commit deleted.",
    "network": "Connections to MySQL, the store or the warehouse are reset, stalled, cut, delayed or slowed at a random "
    "byte, once or for good; the store answers with errors, loses or truncates its answers, lists late. The "
    "command must end by itself, with a line or two. Its timeouts are a tenth of the real ones, so that a stall takes "
    "seconds, unless the scenario says otherwise.",
    "spark": "Workers are killed before, during and after a slice, tasks fail three times or every time, attempts run "
    "twice or continue after another one has counted, a worker runs out of memory, the driver dies while its tasks write.",
    "cluster": "On a Spark standalone cluster of three workers (two in earlier runs): an executor is killed in mid-slice or "
    "after it has written, a machine is lost with its executor, all of them are, the driver dies while its executors write, "
    "a slow attempt at a slice is overtaken by a speculative one, executors come and go (dynamic allocation) and one is lost.",
    "crowd": "Writers at hundreds of rows per second, with long transactions, rollbacks and updates that move rows from "
    "slice to slice, and all commands at once on one table: several syncs, loads, verify, s3clean, set, reset.",
    "world": "The disk of the store, the warehouse or the temporary files is full; the clock is an hour off or jumps "
    "(libfaketime, for one process); the source is restored from a backup or fails over to a lagging replica; "
    "its table is truncated and refilled, recreated, altered or swapped for a copy.",
    "changes": "Between two syncs, every other one of which is struck as well, something changes that rows depend on: "
    "columns, `where`, `exclude`, `target` or the mode, in random walks; someone edits the target; privileges are "
    "revoked and granted again; the server moves to another time zone while old connections keep writing; an application "
    "writes its clock's seconds late. The advice of every refusal is followed to the letter. Also, a resident sync without "
    "a key is killed between its snapshots, and another user probes every port of a running sync.",
    "writers": "A statement or transaction begins before a sync and commits after it, with a cursor that lies before "
    "rows which the sync has seen: it runs, waits, is idle, is prepared (XA), wrote through a trigger or a function, or "
    "under LOCK TABLES. Every other sync is killed as well. Also, syncs on a server that has just restarted or gets a "
    "seventh of its CPU. `locks not shown`: the user may not read performance_schema.",
    "histories": "Seeded random sequences of source changes, schema changes, commands and kills; an independent model "
    "checks the result of every command.",
}
