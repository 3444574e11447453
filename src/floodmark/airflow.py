"""Airflow 3: `FloodmarkOperator` runs the command, and turns its exit code into success, skip, retry or failure.

A target whose rows have changed gets an asset event, with rows and watermark in `extra`; one that has not gets none.
Needs Airflow and Python's own library: the command may live in an environment of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from floodmark.integrations import command as child

try:
    from airflow.sdk import Asset, AssetAlias, BaseOperator
    from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
except ImportError as error:
    raise child.Missing.extra(
        "FloodmarkOperator", "apache-airflow", "airflow", "Airflow 3.0", error
    ) from None

PAST = 1000  # events of a pipeline to look back at
# What Airflow does about a command that was not done.
_ERRORS = {"skip": AirflowSkipException, "retry": AirflowException, "fail": AirflowFailException}


def asset(table: str, pipeline: str = "floodmark") -> Asset:
    """The asset of a table, for a DAG's `schedule`: `floodmark://floodmark/shop.orders`.

    Pipelines that copy tables of the same name need names of their own.
    """
    return Asset(name=f"{pipeline}:{table}", uri=f"floodmark://{pipeline}/{table}")


class FloodmarkOperator(BaseOperator):  # type: ignore[misc]
    """Runs `sync`, or another command that takes tables and prints a document, such as `verify`.

    Exit code 3 skips the task, 4 and 5 (and an interruption) fail it so that Airflow retries; every other failure is
    final. The report is the XCom, without its lists of files.
    """

    template_fields: Sequence[str] = ("tables", "options", "config")
    ui_color = "#cfe8f3"

    def __init__(
        self,
        *,
        tables: Sequence[str] | str = (),
        all_tables: bool = False,
        command: str = "sync",
        options: Mapping[str, Any] | None = None,
        config: str | None = None,
        program: Sequence[str] | str | None = None,
        env: Mapping[str, str] | None = None,
        pipeline: str = "floodmark",
        stop_seconds: float = child.STOP_SECONDS,
        **kwargs: Any,
    ) -> None:
        """`options` are those of the command: `{"limit": 1000, "verify_data": True}`. `program` is the command's path."""
        # An alias: unlike an asset's own, its events are only those that are added. As an inlet, it shows the last ones.
        for name in ("inlets", "outlets"):
            kwargs[name] = [*(kwargs.get(name) or ()), _alias(pipeline)]
        super().__init__(**kwargs)
        if bool(tables) == all_tables:
            raise ValueError(f"{self.task_id}: name the tables, or pass all_tables=True")
        self.tables = [tables] if isinstance(tables, str) else list(tables)
        self.all_tables = all_tables
        self.command = command
        self.options = dict(options or {})
        self.config = config
        self.program = [program] if isinstance(program, str) else list(program or ())
        self.env = env
        self.pipeline = pipeline
        self.stop_seconds = stop_seconds
        self._running: child.CommandProcess | None = None

    def execute(self, context: Any) -> dict[str, Any]:
        """The report of the command."""
        arguments = child.sync_arguments(
            self.tables, self.all_tables, self.options, self.config, self.command
        )
        self._running = command = child.CommandProcess(
            arguments,
            self.program or child.PROGRAM,
            env=self.env,
            say=lambda line: self.log.info("%s", line),
            stop_seconds=self.stop_seconds,
        )
        ended = command.run()
        if (what := child.verdict(ended.code)) != "done":
            raise _ERRORS[what](ended.failure)
        document = ended.document or {}
        if self.command == "sync":
            self._tell(context, document)
        report: dict[str, Any] = child.short(document)
        return report

    def on_kill(self) -> None:
        """Ends the sync as SIGTERM does."""
        if self._running is not None:
            self._running.stop()

    def _tell(self, context: Any, document: Mapping[str, Any]) -> None:
        """Adds an event for each target that has changed since the last one."""
        told = self._told(context)
        events = context["outlet_events"][_alias(self.pipeline)]
        last = None if told is None else lambda table: told.get(asset(table, self.pipeline).uri)
        for table, extra in child.moved(document, last).items():
            events.add(asset(table, self.pipeline), extra=extra)
            self.log.info("%s: %s rows loaded", table, extra["rows"])

    def _told(self, context: Any) -> dict[str, str] | None:
        """For each asset, the load that its last event was about; None if nobody knows."""
        try:
            past = context["inlet_events"][_alias(self.pipeline)]
            if hasattr(past, "ascending") and hasattr(past, "limit"):
                past = reversed(list(past.ascending(False).limit(PAST)))
            return {event.asset.uri: str((event.extra or {}).get("loaded_at") or "") for event in past}
        except Exception as error:  # events are no reason to fail a sync that has succeeded
            self.log.warning("the last events are unknown: %s", error)
            return None


def _alias(pipeline: str) -> AssetAlias:
    return AssetAlias(f"floodmark:{pipeline}")
