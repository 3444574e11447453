"""Dagster: an asset for each table of a configuration, with its freshness, and an asset check by `verify`.

The command runs as a child process, so that Spark's JVM and its signals don't interfere with Dagster. An asset's data version
is the time of its last load: a sync that found nothing keeps the asset fresh and does not make it look changed.
"""

# No `annotations` from __future__: Dagster looks at the context's type, and does not resolve a name.
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from floodmark.config import load as configuration
from floodmark.config.load import AlertSpec, Config
from floodmark.integrations import command as child
from floodmark.model.errors import ConfigError

try:
    import dagster as dg

    dg.FreshnessPolicy.time_window  # noqa: B018
except (ImportError, AttributeError) as error:
    why = error if isinstance(error, ImportError) else ImportError("it has no FreshnessPolicy.time_window")
    raise child.Missing.extra("floodmark.dagster", "dagster", "dagster", "Dagster 1.11", why) from None

CHECK = "matches_source"
FAIL_AFTER = 4  # times `behind`, after which Dagster only warns
RETRIES, RETRY_SECONDS = 3, 60


@dataclass(frozen=True)
class _Setting:
    """What all assets of one configuration share."""

    config: Config
    program: Sequence[str]
    env: Mapping[str, str] | None
    retries: int
    retry_seconds: float

    def run(
        self, context: Any, command: str, tables: Sequence[str], options: Mapping[str, Any]
    ) -> child.CommandResult:
        arguments = child.sync_arguments(tables, False, options, str(self.config.path), command)
        return child.CommandProcess(arguments, self.program, env=self.env, say=context.log.info).run()

    def refuse(self, ended: child.CommandResult) -> Exception:
        """What Dagster should do about an exit code: 3, 4 and 5 are tried again."""
        failure: Exception = dg.Failure(description=ended.failure, allow_retries=False)
        if child.verdict(ended.code) == "fail":
            return failure
        again: Exception = dg.RetryRequested(self.retries, self.retry_seconds)
        again.__cause__ = failure
        return again


def assets(
    config: Config | Path | str | None = None,
    *,
    tables: Sequence[str] | None = None,
    key_prefix: Sequence[str] = (),
    group_name: str = "floodmark",
    options: Mapping[str, Any] | None = None,
    checks: bool = True,
    program: Sequence[str] | str | None = None,
    env: Mapping[str, str] | None = None,
    retries: int = RETRIES,
    retry_seconds: float = RETRY_SECONDS,
) -> list[Any]:
    """The assets of a configuration, and their checks, for `dg.Definitions(assets=…, asset_checks=…)`.

    `tables`: which; by default those of the configuration. `options` are those of `sync`. Without `checks`, there is
    no verify. `program` is the command, where it is not that of this environment.
    """
    given = Path(config) if isinstance(config, str) else config
    loaded = given if isinstance(given, Config) else configuration.load(given)
    names = tuple(tables if tables is not None else loaded.tables)
    if not names or any(set("*?[") & set(name) or "." not in name for name in names):
        raise ConfigError(
            "assets are defined before the source is queried, so name every table as schema.table",
            hint="list them below tables in the configuration, or pass tables=[…]",
        )
    command = [program] if isinstance(program, str) else list(program or child.PROGRAM)
    setting = _Setting(loaded, command, env, retries, retry_seconds)
    keys = {name: dg.AssetKey([*key_prefix, *name.split(".", 1)]) for name in names}
    made = [_assets(setting, keys, group_name, dict(options or {}))]
    return [*made, _checks(setting, keys, group_name)] if checks else made


def _assets(setting: _Setting, keys: Mapping[str, Any], group: str, options: Mapping[str, Any]) -> Any:
    specs = [_spec(setting.config, name, key, group) for name, key in keys.items()]

    @dg.multi_asset(specs=specs, name=f"{_word(group)}_sync", can_subset=True)  # type: ignore[untyped-decorator]
    def sync(context: dg.AssetExecutionContext) -> Iterator[Any]:
        chosen = [name for name, key in keys.items() if key in context.selected_asset_keys]
        ended = setting.run(context, "sync", chosen, options)
        for table in (ended.document or {}).get("tables", ()):
            if table["ok"] and table["table"] in keys:
                yield dg.MaterializeResult(
                    asset_key=keys[table["table"]],
                    metadata=metadata(ended.document or {}, table),
                    data_version=_version(table),
                )
        if ended.code:
            raise setting.refuse(ended)

    return sync


def _checks(setting: _Setting, keys: Mapping[str, Any], group: str) -> Any:
    described = "Source and warehouse agree, row by row, up to the watermark."
    specs = [dg.AssetCheckSpec(CHECK, asset=key, description=described) for key in keys.values()]

    @dg.multi_asset_check(specs=specs, name=f"{_word(group)}_verify", can_subset=True)  # type: ignore[untyped-decorator]
    def verify(context: dg.AssetCheckExecutionContext) -> Iterator[Any]:
        wanted = {key.asset_key for key in context.selected_asset_check_keys}
        ended = setting.run(context, "verify", [name for name, key in keys.items() if key in wanted], {})
        for table in (ended.document or {}).get("tables", ()):
            if table["table"] in keys and not table["error"]:
                findings = "; ".join(one["detail"] for one in table["findings"][:5])
                yield dg.AssetCheckResult(
                    asset_key=keys[table["table"]],
                    check_name=CHECK,
                    passed=table["ok"],
                    metadata=compared(table),
                    description=None if table["ok"] else findings,
                )
        if ended.code not in (0, 7):  # 7: the checks have failed, and say so
            raise setting.refuse(ended)

    return verify


def _spec(config: Config, name: str, key: Any, group: str) -> Any:
    options = config.options(name)
    target = options.target or name.partition(".")[2].lower()
    behind = options.behind or (config.alerts or AlertSpec()).behind
    return dg.AssetSpec(
        key,
        group_name=group,
        description=f"{name} of MySQL at {config.source.host}, copied by Floodmark.",
        metadata={"dagster/table_name": f"{config.warehouse.schema}.{target}", "floodmark/table": name},
        kinds={"mysql", config.warehouse.kind},
        freshness_policy=dg.FreshnessPolicy.time_window(
            fail_window=timedelta(seconds=max(behind * FAIL_AFTER, 120.0)),
            warn_window=timedelta(seconds=max(behind, 60.0)),
        ),
    )


def metadata(document: Mapping[str, Any], table: Mapping[str, Any]) -> dict[str, Any]:
    """What a materialization shows: rows, lag and position."""
    watermark = table.get("watermark") or {}
    lag = table.get("lag_after") or {}
    shown = {
        "rows_extracted": table["rows_extracted"],
        "rows_loaded": table["rows_loaded"],
        "rows_deleted": table["rows_deleted"],
        "rows_reread": table["rows_reread"],
        "lag_seconds": lag.get("seconds"),
        "lag_ids": lag.get("ids"),
        "position": watermark.get("last_mysql_data_timestamp"),
        "position_id": ", ".join(map(str, watermark.get("last_mysql_data_id") or ())) or None,
        "commit": watermark.get("commit"),
        "loaded_at": watermark.get("last_redshift_load_time"),
        "seconds": table["seconds"],
        "run": document.get("run"),
    }
    return {name: value for name, value in shown.items() if value is not None}


def compared(table: Mapping[str, Any]) -> dict[str, Any]:
    """What a check shows."""
    names = ("rows_source", "rows_warehouse", "rows_left_out", "missing", "extra", "different")
    return {name: table[name] for name in names if table[name] is not None}


def _version(table: Mapping[str, Any]) -> Any:
    loaded_at = (table.get("watermark") or {}).get("last_redshift_load_time")
    return dg.DataVersion(loaded_at) if loaded_at else None


def _word(text: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in text)
