"""The configuration file: where it is, what it may contain, and how each mistake is reported."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import Iam, SourceSpec, Ssh, StoreSpec, TableOptions, Tls, load
from floodmark.model.errors import ConfigError, Mistake, Mistakes
from floodmark.model.secrets import Scrubber
from tests.unit.conftest import SOURCE, Load, mistakes

# the whole file


def test_only_the_source_is_required(read: Load, tmp_path: Path) -> None:
    config = read("source:\n  url: mysql://reader:pw@db.internal\n")
    assert config.source == SourceSpec("db.internal", 3306, "reader", "pw")
    assert config.store == StoreSpec(str(tmp_path / "lake"))
    assert (config.warehouse.kind, config.warehouse.schema) == ("duckdb", "main")
    assert config.warehouse.path == tmp_path / "warehouse.duckdb"
    assert (config.spark.master, config.spark.conf, config.tables) == ("local[*]", {}, ())
    assert config.options("shop.orders") == TableOptions()
    assert TableOptions().start is None, "everything"
    assert config.path == tmp_path / "floodmark.yaml"


def test_every_key_of_the_contract_arrives(
    read: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ca.pem", "id_ed25519", "known_hosts"):
        (tmp_path / name).touch()
    for name in ("MYSQL_PASSWORD", "KEY", "SECRET", "REDSHIFT_PASSWORD"):
        monkeypatch.setenv(name, name.lower())
    monkeypatch.setenv("HOME", str(tmp_path))
    config = read("""
source:
  url: mysql://reader:${MYSQL_PASSWORD}@db.internal:3307/settlement
  tls: {mode: verify_identity, ca: ca.pem}
  ssh: {host: bastion, port: 22, user: me, key: ~/id_ed25519, known_hosts: ~/known_hosts}
  max_connections: 4
store:
  url: s3://bucket/prefix/
  endpoint: http://127.0.0.1:8333/
  region: us-east-1
  access_key_id: ${KEY}
  secret_access_key: ${SECRET}
warehouse:
  url: redshift://loader:${REDSHIFT_PASSWORD}@host:5439/dev
  iam_role: arn:aws:iam::123456789012:role/loader
  ssh: {host: bastion}
  tls: {mode: required}
spark: {master: "local[2]", conf: {spark.executor.memory: 2g, spark.speculation: true}}
defaults:
  start: "2024-01-01 00:00:00"
  slice_rows: 1000
  settle_seconds: 0.5
  overlap_seconds: auto
  keep_copies: 3d
tables:
  settlement.settlement_normal_delivery_detail:
    cursor: update_at
    cursor_timezone: Asia/Shanghai
    key: [id]
    target: delivery_detail
    mode: upsert
    where: "status <> 9"
    exclude: [internal_note]
    dist_key: id
    sort_key: [update_at]
    deletes: soft
    deletes_every: 12h
    keep_files: 7d
    zero_dates: keep
    overflow: truncate
""")
    bastion = Ssh("bastion", 22, "me", tmp_path / "id_ed25519", tmp_path / "known_hosts")
    assert config.source == SourceSpec(
        "db.internal", 3307, "reader", "mysql_password", "settlement",
        Tls("verify_identity", tmp_path / "ca.pem"), bastion, 4,
    )  # fmt: skip
    assert config.store == StoreSpec(
        "s3://bucket/prefix", "http://127.0.0.1:8333", "us-east-1", "key", "secret"
    )
    warehouse = config.warehouse
    assert (warehouse.kind, warehouse.schema, warehouse.host, warehouse.port) == (
        "redshift",
        "public",
        "host",
        5439,
    )
    assert (warehouse.user, warehouse.password, warehouse.database) == ("loader", "redshift_password", "dev")
    assert warehouse.iam_role == "arn:aws:iam::123456789012:role/loader"
    assert (warehouse.tls, warehouse.ssh) == (Tls("required"), Ssh("bastion"))
    assert warehouse.label == "redshift://host:5439/dev"
    assert config.spark.conf == {"spark.executor.memory": "2g", "spark.speculation": "true"}
    assert config.options("settlement.settlement_normal_delivery_detail") == TableOptions(
        cursor="update_at", cursor_timezone="Asia/Shanghai", key=("id",), target="delivery_detail", mode="upsert",
        where="status <> 9", exclude=("internal_note",), dist_key="id", sort_key=("update_at",), deletes="soft",
        deletes_every=43_200.0, keep_files=604_800.0, zero_dates="keep", overflow="truncate",
        start="2024-01-01 00:00:00", slice_rows=1000, settle_seconds=0.5, overlap_seconds=None,
        keep_copies=259_200.0,
    )  # fmt: skip


def test_all_mistakes_are_reported_at_once_with_their_paths(read: Load) -> None:
    said = mistakes(
        read,
        """
sorce: {}
source: {url: "mysql://reader@db", tsl: {}, max_connections: 0}
store: {url: "gs://b"}
warehouse: {url: "duckdb://x.duckdb", ssh: {prot: 1}}
spark: {conf: [a]}
defaults: {settle_seconds: -1, keep_copies: 7}
tables:
  shop.orders: {cursr: a, mode: upsrt, slice_rows: ten, start: 2025-13-01, key: [], cursor_timezone: Mars}
  shop.items: [a]
""",
    )
    assert said.split("\n", 1)[0].endswith("has 17 mistakes:")
    for each in (
        "sorce: unknown key; did you mean source?",
        "source.tsl: unknown key; did you mean tls?",
        "source.max_connections: must be at least 1",
        "store.url: must be s3://bucket/prefix or a folder",
        "warehouse.url: has no file; write three slashes and a path: duckdb:///warehouse.duckdb",
        "warehouse.ssh.host: is required",
        "warehouse.ssh.prot: unknown key; did you mean port?",
        "spark.conf: must be a block of keys",
        "defaults.settle_seconds: must be at least 0",
        "defaults.keep_copies: is not a duration",
        "tables.shop.orders.cursr: unknown key; did you mean cursor?",
        "tables.shop.orders.mode: must be upsert, append or full",
        "tables.shop.orders.slice_rows: must be a whole number",
        "tables.shop.orders.start: is not a timestamp",
        "tables.shop.orders.key: must not be empty",
        "tables.shop.orders.cursor_timezone: must be server, UTC or",
        "tables.shop.items: must be a block of keys",
    ):
        assert f"\n  {each}" in said


def test_mistakes_are_values_with_a_place_and_the_variable_that_is_missing(
    read: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(Mistakes) as caught:
        read(
            "source: {url: 'mysql://u:${NOT_THERE}@h/d'}\nstore: {region: '${NOT_THERE}', 'odd: key': 1}\n"
            "warehouse: {url: '${}'}\n"
        )
    error = caught.value
    found = {mistake.place: mistake for mistake in error.mistakes}
    assert set(found) == {"source.url", "store.region", "store.odd: key", "warehouse.url"}
    missing = "environment variable NOT_THERE is not set"
    assert found["source.url"] == Mistake("source.url", missing, "NOT_THERE")
    assert found["store.region"] == Mistake("store.region", missing, "NOT_THERE")
    assert found["warehouse.url"].variable is None and found["warehouse.url"].said.startswith(
        "has a ${ without"
    )
    assert error.summary == f"{tmp_path / 'floodmark.yaml'} has 4 mistakes" and error.listed
    assert error.message == "\n".join([f"{error.summary}:", *(f"  {mistake}" for mistake in error.mistakes)])
    assert pickle.loads(pickle.dumps(error)).mistakes == error.mistakes


def test_a_single_mistake_is_one_line(read: Load, tmp_path: Path) -> None:
    assert mistakes(read, "tables: {}\n") == f"{tmp_path / 'floodmark.yaml'}: source.url: is required"
    assert mistakes(read, "").endswith("source.url: is required")
    assert "\n" not in mistakes(read, SOURCE + "zzzzz: 1\n")


# which file


def test_the_file_is_the_one_named_or_the_environments_or_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    with pytest.raises(ConfigError, match=r"no configuration .*/floodmark.yaml") as caught:
        load(None)
    assert "floodmark init --source mysql://" in str(caught.value.hint)
    for name in ("floodmark.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_text(SOURCE)
    assert load(None).path.name == "floodmark.yaml"
    monkeypatch.setenv("FLOODMARK_CONFIG", "b.yaml")
    assert load(None).path == tmp_path / "b.yaml"
    assert load(Path("c.yaml")).path == tmp_path / "c.yaml"


def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"source: \xff\xfe")
    for path in (tmp_path, tmp_path / "x"):
        with pytest.raises(ConfigError):
            load(path)


# YAML


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("source:\n\turl: x\n", "line 2, column 1"),
        ("source: {url: x\n", "line 2, column 1"),
        ("a: b: c\n", "line 1, column 5"),
        ("source: {}\n---\nsource: {}\n", "line 2, column 1"),
        ("source: \x01\n", "line 1, column 9"),
    ],
)
def test_bad_yaml_is_reported_with_its_line_and_column(read: Load, text: str, place: str) -> None:
    assert place in mistakes(read, text)


def test_bad_yaml_does_not_quote_the_secret_in_its_line(read: Load) -> None:
    assert "hunter2" not in mistakes(read, "source:\n  url: *hunter2\n")
    assert "hunter2" not in mistakes(read, "source: {url: mysql://u:hunter2: x}\n  y\n")


def test_a_key_given_twice_is_a_mistake(read: Load) -> None:
    said = mistakes(read, SOURCE + "tables:\n  a.b: {}\n  a.b: {}\n")
    assert said.endswith("tables.a.b: given twice (line 4)")


def test_blocks_may_be_empty(read: Load) -> None:
    config = read(SOURCE + "store:\nwarehouse:\nspark:\ndefaults: null\ntables:\n  a.b:\n  a.c: null\n")
    assert config.tables == ("a.b", "a.c")


def test_anchors_and_merges_work_and_loops_are_mistakes(read: Load) -> None:
    config = read(SOURCE + "tables:\n  a.b: &x {mode: full, target: t}\n  a.c: {<<: *x, target: u}\n")
    assert (config.options("a.c").mode, config.options("a.c").target) == ("full", "u")
    assert "contains itself" in mistakes(read, SOURCE + "tables: &t\n  a.b: *t\n")


def test_keys_that_do_not_fit_together_are_mistakes(read: Load, tmp_path: Path) -> None:
    (tmp_path / "c").touch()
    for text, said in {
        "store: {url: 's3://b', access_key_id: k}": "store: access_key_id and secret_access_key go together",
        "store: {url: b/p, endpoint: 'http://h'}": "store: endpoint and keys apply only to s3://",
        "store: {url: 's3://'}": "store.url: must be a bucket",
        "store: {url: 's3://b', endpoint: h}": "store.endpoint: must be http://",
        "store: {copies_to: ./lake/copies}": "store: copies_to has a place inside the store",
        "store: {copies_to: [a, a/b]}": "store: copies_to has a place inside the store or inside another",
        "store: {copies_to: [{url: a, lag: 1}]}": "store.copies_to.0.lag: unknown key; did you mean log?",
        "store: {copies_to: [{log: true}]}": "store.copies_to.0.url: is required",
        "store: {copies_to: ['http://h']}": "store.copies_to.0.url: must be s3://bucket/prefix or a folder",
        "warehouse: {tls: {cert: c}}": "warehouse.tls: cert and key go together",
        "warehouse: {tls: {ca: gone.pem}}": f"warehouse.tls.ca: there is no file {tmp_path}/gone.pem",
        "warehouse: {url: 'redshift://u@h/d'}": "store.url: is a folder, but Redshift reads only from S3",
        "defaults: {key: id, exclude: [id]}": "defaults: exclude lists the key or the cursor",
    }.items():
        assert said in mistakes(read, SOURCE + text + "\n")


def test_copies_go_to_the_store_s_server_unless_configured_otherwise(read: Load, tmp_path: Path) -> None:
    config = read(
        SOURCE
        + """
store:
  url: s3://bucket/prefix
  endpoint: http://127.0.0.1:8333
  region: us-east-1
  access_key_id: key
  secret_access_key: hidden
  copies_to:
    - s3://other/prefix
    - ./copies
    - {url: s3://far, endpoint: https://elsewhere, region: eu-west-1, log: true}
"""
    )
    near, folder, far = config.store.copies_to
    assert near.store == StoreSpec("s3://other/prefix", "http://127.0.0.1:8333", "us-east-1", "key", "hidden")
    assert folder.store == StoreSpec(str(tmp_path / "copies")) and not (near.log or folder.log)
    # Keys are sent only to their own server.
    assert far.store == StoreSpec("s3://far", "https://elsewhere", "eu-west-1") and far.log
    scrub = Scrubber()
    scrub.learn(replace(config.store, secret_access_key=None, access_key_id=None))
    assert "hidden" not in repr(config.store) and scrub("it is hidden") == "it is ***"
    assert [place.store.url for place in read(SOURCE + "store: {copies_to: /c}\n").store.copies_to] == ["/c"]


def test_a_clear_text_password_may_be_sent_only_to_a_verified_server(read: Load) -> None:
    def source(tls: str) -> str:
        return SOURCE.replace("}", f"{tls}, cleartext_password: true}}")

    for tls in ("", ", tls: {mode: required}", ", tls: {mode: verify_ca}"):
        said = mistakes(read, source(tls))
        assert "source: cleartext_password needs tls: {mode: verify_identity}" in said
    assert read(source(", tls: {mode: verify_identity}")).source.cleartext_password
    assert not read(SOURCE).source.cleartext_password


def test_redshift_can_be_used_with_iam_and_through_the_data_api(read: Load) -> None:
    url = "store: {url: 's3://bucket'}\nwarehouse:\n  url: redshift://loader@host/dev\n"
    found = read(
        SOURCE + url + "  iam: {workgroup: group, region: eu-central-1}\n  transport: data_api\n"
    ).warehouse
    assert (found.iam, found.transport) == (Iam(workgroup="group", region="eu-central-1"), "data_api")
    assert read(SOURCE + url).warehouse.transport == "socket"
    assert read(SOURCE + url + "  statement_timeout: 20h\n").warehouse.statement_timeout == 72_000
    for text, said in {
        url + "  iam: {region: x}": "either cluster (provisioned) or workgroup (serverless)",
        url + "  transport: data_api": "data_api needs iam",
        url + "  iam: {cluster: c}\n  tls: {mode: disabled}": "iam needs TLS",
        "warehouse:\n  url: redshift://u:secret@h/dev\n  iam: {cluster: c}": "replaces the password",
        "warehouse: {transport: data_api}": "apply only to redshift://",
        "warehouse: {statement_timeout: 2h}": "apply only to redshift://",
        "warehouse: {large_strings: true}": "apply only to redshift://",
        url + "  statement_timeout: 30s": "between 1m and 24h",
        url + "  statement_timeout: 2d": "between 1m and 24h",
    }.items():
        problem = mistakes(read, SOURCE + text + "\n")
        assert said in problem and "secret" not in problem


# tables


ROLE = "arn:aws:iam::123456789012:role/loader"


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("default", "default"),
        ("Default", "default"),
        (ROLE, ROLE),
        (f"{ROLE}, {ROLE}2", f"{ROLE},{ROLE}2"),
        (
            "arn:aws-us-gov:iam::123456789012:role/team/loader",
            "arn:aws-us-gov:iam::123456789012:role/team/loader",
        ),
    ],
)
def test_the_copy_role_is_a_keyword_or_arns_without_spaces(read: Load, written: str, sent: str) -> None:
    spec = read(
        f"source: {{url: 'mysql://a@db'}}\nstore: {{url: 's3://b'}}\nwarehouse: {{url: 'redshift://a:b@h/dev', iam_role: '{written}'}}"
    )
    assert spec.warehouse.iam_role == sent


@pytest.mark.parametrize(
    "written", ["loader", "arn:aws:iam::1:user/x", f"{ROLE} {ROLE}", f"default,{ROLE}", f"{ROLE},"]
)
def test_a_role_that_copy_would_reject_is_a_mistake(read: Load, written: str) -> None:
    said = mistakes(
        read,
        f"source: {{url: 'mysql://a@db'}}\nstore: {{url: 's3://b'}}\nwarehouse: {{url: 'redshift://a:b@h/dev', iam_role: '{written}'}}",
    )
    assert "warehouse.iam_role: must be default, a role's ARN" in said


def test_exact_names_win_over_patterns_and_patterns_over_defaults(read: Load) -> None:
    config = read(
        SOURCE
        + """
defaults: {mode: append, slice_rows: 10, cursor: c}
tables:
  shop.orders: {slice_rows: 40}
  shop.*: {slice_rows: 20, cursor: null}
  "*.o*": {slice_rows: 30}
"""
    )
    found = {name: config.options(name) for name in ("shop.orders", "shop.items", "shop.other", "crm.x")}
    assert {name: options.slice_rows for name, options in found.items()} == {
        "shop.orders": 40, "shop.items": 20, "shop.other": 30, "crm.x": 10,
    }  # fmt: skip
    assert {options.mode for options in found.values()} == {"append"}
    assert (found["shop.orders"].cursor, found["crm.x"].cursor) == (None, "c")
    assert config.tables == ("shop.orders", "shop.*", "*.o*")


def test_the_urls_database_completes_a_tables_name(read: Load) -> None:
    config = read(SOURCE + "tables: {orders: {mode: full}, 'it*': {mode: append}}\n")
    assert config.tables == ("shop.orders", "shop.it*")
    assert config.options("orders").mode == config.options("shop.orders").mode == "full"
    assert config.options("items").mode == "append"
    assert config.options("crm.items").mode is None
    assert "tables.shop.orders: given twice" in mistakes(
        read, SOURCE + "tables: {orders: {}, shop.orders: {}}\n"
    )
    assert "write schema.table" in mistakes(read, "source: {url: 'mysql://u@h'}\ntables: {orders: {}}\n")


# alerts


def test_alerts_name_receivers_that_are_never_shown(read: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_URL", "https://hooks.example.org/T0PSECRET")
    config = read(f"""{SOURCE}
alerts: {{webhook: "${{HOOK_URL}}", to: mailto://me:pw1234567@example.org, behind: 5m, on: [failed, recovered]}}
tables: {{shop.orders: {{behind: 1h}}}}
""")
    assert config.alerts is not None and config.alerts.on == ("failed", "recovered")
    assert (config.alerts.behind, config.alerts.to) == (300, ("mailto://me:pw1234567@example.org",))
    assert config.options("shop.orders").behind == 3600 and config.options("shop.other").behind is None
    assert "T0PSECRET" not in repr(config) and "pw1234567" not in repr(config)
    scrub = Scrubber()
    scrub.learn(config)
    said = scrub("posting to https://hooks.example.org/T0PSECRET and mailto://me:pw1234567@example.org")
    assert said == "posting to *** and mailto://me:***@example.org"


def test_mistakes_in_alerts_have_their_keys(read: Load) -> None:
    found = mistakes(
        read, f"{SOURCE}\nalerts: {{webhook: hooks, to: [me], behind: soon, on: [sometimes], x: 1}}\n"
    )
    assert {line.strip().partition(":")[0] for line in found.splitlines()[1:]} == {
        "alerts.webhook", "alerts.to.0", "alerts.behind", "alerts.on.0", "alerts.x"
    }  # fmt: skip


# changes: binlog


def test_a_table_that_follows_the_binary_log_deletes_rows_unless_it_says_otherwise(read: Load) -> None:
    config = read(
        SOURCE
        + """
defaults: {changes: binlog}
tables:
  shop.orders: {}
  shop.kept: {deletes: ignore}
  shop.by_cursor: {changes: cursor, cursor: updated_at}
"""
    )
    assert config.options("shop.orders").changes == "binlog"
    assert config.options("shop.orders").deletes == "hard"
    assert config.options("shop.kept").deletes == "ignore"
    by_cursor = config.options("shop.by_cursor")
    assert (by_cursor.changes, by_cursor.cursor, by_cursor.deletes) == ("cursor", "updated_at", "ignore")


def test_cursor_and_start_of_a_wider_entry_do_not_apply_to_a_table_that_follows_the_binary_log(
    read: Load,
) -> None:
    config = read(
        SOURCE
        + """
defaults: {start: "2024-01-01", settle_seconds: 5}
tables:
  "shop.*": {cursor: updated_at}
  shop.orders: {changes: binlog}
"""
    )
    options = config.options("shop.orders")
    assert (options.cursor, options.start, options.settle_seconds, options.conflict) == (None, None, 5, None)
    assert config.options("shop.others").start == "2024-01-01 00:00:00"


def test_a_cursor_beside_changes_binlog_or_in_a_more_specific_entry_is_a_conflict(read: Load) -> None:
    said = mistakes(
        read,
        SOURCE
        + """
defaults: {changes: binlog, start: "2024-01-01"}
tables:
  shop.a: {changes: binlog, cursor: updated_at}
  shop.b: {changes: binlog, mode: append}
""",
    )
    assert "defaults: changes: binlog reads no cursor, so start means nothing; remove one of them" in said
    assert "tables.shop.a: changes: binlog reads no cursor, so cursor means nothing" in said
    assert "tables.shop.b: changes: binlog merges rows by key, and mode: append does not" in said
    config = read(
        SOURCE
        + """
defaults: {changes: binlog}
tables: {shop.orders: {cursor: updated_at}, shop.log: {mode: append}}
"""
    )
    assert "so cursor means nothing" in (config.options("shop.orders").conflict or "")
    assert "mode: append does not" in (config.options("shop.log").conflict or "")
