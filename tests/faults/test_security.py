"""What someone hostile writes is data or is refused: names and values of the source, the configuration, and every
document of the store. No traceback, no flood of lines, no memory filled, no secret shown."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from pathlib import Path

import pytest
import yaml

from floodmark.cli.main import main
from floodmark.config.load import load
from floodmark.model.errors import ConfigError
from tests.conftest import Workspace
from tests.support.orders import create_orders, fill_orders

HOSTILE = [
    "'; DROP TABLE bystander; --",
    '"; DROP TABLE bystander; --',
    "`; DROP TABLE bystander; #",
    "\\' OR 1=1 -- \\",
    "%s %(x)s %d {0} ${HOME} $$",
    "../../../etc/passwd",
    "line\nbreak\r\ttab",
    "\u202eabc\u0000def\u2028",
    "=cmd|' /C calc'!A0",
    "𝒳\u0301é",
]


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(20))
    workspace.synced("orders")
    return workspace


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# ---------------------------------------------------------------- the source


def test_sql_in_names_and_values_is_data(workspace: Workspace) -> None:
    names = [
        "a'; DROP TABLE bystander; --",
        'b"; DROP TABLE bystander; --',
        "c`d",
        "%s",
        "../e",
        "f\ng",
        "g\\",
    ]
    table = "t'\"`; DROP TABLE bystander; -- ../"
    link = workspace.database.connect()
    with link.cursor() as cursor:
        cursor.execute("CREATE TABLE bystander (id INT PRIMARY KEY, at TIMESTAMP NOT NULL)")
        cursor.execute("INSERT INTO bystander VALUES (1, '2025-03-01')")
        columns = ", ".join(f"{quoted(name).replace('%', '%%')} TEXT" for name in names)
        options = ", ".join("'" + v.replace("\\", "\\\\").replace("'", "''") + "'" for v in HOSTILE[:4])
        cursor.execute(
            f"CREATE TABLE {quoted(table)} (id VARCHAR(60) PRIMARY KEY, e ENUM({options}), {columns.replace('%%', '%')},"
            " update_at DATETIME NOT NULL DEFAULT '2025-03-01', KEY (update_at))"
        )
        for n, value in enumerate(HOSTILE):
            marks = ", ".join(["%s"] * (len(names) + 2))
            cursor.execute(
                f"INSERT INTO {quoted(table)} VALUES ({marks}, DEFAULT)",
                [value, HOSTILE[n % 4], *[value] * len(names)],
            )
    link.commit()
    link.close()
    workspace.synced("bystander")
    name = workspace.full_name(table)
    workspace.write(tables={name: {"deletes": "hard", "deletes_every": "0s"}})
    assert workspace.sync(name, limit=4).ok and workspace.sync(name).ok  # positions hold hostile keys, too
    target = '"' + table.replace('"', '""').lower() + '"'
    rows = workspace.query(f"SELECT * FROM {target}")
    assert sorted(str(row[0]) for row in rows) == sorted(HOSTILE)
    for row in rows:
        assert set(row[2:-1]) == {row[0]} and row[1] == HOSTILE[HOSTILE.index(row[0]) % 4]
    assert workspace.query("SELECT id FROM bystander") == [(1,)]
    outside = {p.name for p in workspace.folder.iterdir()} - {"lake", "floodmark.yaml", "warehouse.duckdb"}
    assert not outside
    assert not main(["watermark", "get", "-t", name, "--config", str(workspace.file)])


# ---------------------------------------------------------------- the configuration


def laughs() -> str:
    lines = ["x0: &x0 [" + ", ".join("x" * 10) + "]"]
    lines += [f"x{n}: &x{n} [" + ", ".join([f"*x{n - 1}"] * 10) + "]" for n in range(1, 12)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (laughs(), "more than 200,000 values"),
        ("a: " + "[" * 1200 + "]" * 1200, "nested too deeply"),
        ("source: {url: !!python/object/apply:os.system ['touch pwned']}", "source.url: has a tag (line 1)"),
        ("source: !!python/name:os.system x", "source: has a tag (line 1)"),
        ("source: {url: mysql://a@b/c}\nsource: {url: mysql://x@y/z}", "source: given twice"),
        ("source: {url: mysql://a@b/c}\n# " + "x" * 5_000_000, "too large for a configuration"),
        ("source: &a {url: *a}", "contains itself"),
    ],
    ids=["laughs", "deep", "apply", "name", "twice", "huge", "loop"],
)
def test_a_hostile_configuration_is_refused_at_once_and_runs_nothing(
    tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "floodmark.yaml"
    file.write_text(text)
    began = time.monotonic()
    with pytest.raises(ConfigError) as refused:
        load(file)
    assert said in refused.value.message and len(refused.value.message) < 2000
    assert time.monotonic() - began < 20
    assert os.listdir(tmp_path) == ["floodmark.yaml"]


def test_a_secret_that_others_can_read_is_a_warning_of_one_line(
    orders: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    file = orders.file

    def said() -> list[str]:
        assert main(["sync", "-t", "orders", "--dry-run", "--config", str(file)]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if "warning" in line]

    file.chmod(0o644)
    [line] = said()
    assert "source.url: in plain text" in line and f"chmod 600 {file}" in line
    file.chmod(0o600)
    assert said() == []
    text = yaml.safe_load(file.read_text())
    secret = orders.database.url.partition("//")[2].rpartition("@")[0].partition(":")[2]
    text["source"]["url"] = text["source"]["url"].replace(f":{secret}@", ":${HUSH}@")
    file.write_text(yaml.safe_dump(text))
    file.chmod(0o644)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("HUSH", secret)
        assert said() == []


# ---------------------------------------------------------------- documents of the store

DEEP = b"[" * 200_000
PAYLOADS = {
    "empty": b"",
    "binary": bytes(range(256)) * 20,
    "deep": DEEP,
    "deep inside": b'{"table_name": ' + DEEP,
    "wrong types": b'{"n": "one", "table_name": [], "checkpoint": 7, "id": {}, "run": null, "warehouse": []}',
    "list": b"[1, 2, 3]",
    "vast number": b'{"n": 1' + b"0" * 1000 + b', "commit": 1' + b"0" * 1000 + b"}",
    "vaster number": b'{"n": 1' + b"0" * 100_000 + b"}",
    "nan": b'{"n": NaN, "seconds": -Infinity, "table_name": NaN}',
    "large": b'{"table_name": "' + b"x" * 8_000_000 + b'"}',
}


def answer(workspace: Workspace, capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    """A command in this process: its code and its lines, after the checks that hold for every answer."""
    began = time.monotonic()
    code = main([*args, "--config", str(workspace.file), "--quiet"])
    out, err = capsys.readouterr()
    assert time.monotonic() - began < 30
    assert len(err.splitlines()) <= 2 and len(err) < 2000, err[:3000]
    assert "Traceback" not in out + err and "\x1b" not in err
    return code, out + err


def test_hostile_documents_are_recovered_from_or_refused_cleanly(
    orders: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, name = orders.folder / "lake", orders.full_name("orders")
    sound = orders.folder / "sound"
    shutil.copytree(lake, sound)
    newest = max((lake / "commits" / name).iterdir())
    copies = [*(lake / "watermark").rglob(f"*{name}*.json")]
    get = ("watermark", "get", "-t", "orders", "--json")
    before = json.loads(answer(orders, capsys, *get)[1])
    assert len(copies) >= 3

    def after(payload: bytes, paths: list[Path], *args: str) -> tuple[int, str]:
        shutil.rmtree(lake)
        shutil.copytree(sound, lake)
        for path in paths:
            path.write_bytes(payload)
        return answer(orders, capsys, *args)

    for kind, payload in PAYLOADS.items():
        for paths in ([newest], [copies[0]], copies, [lake / "leases" / f"{name}.json"]):
            code, text = after(payload, paths, *get)
            assert code == 0, (kind, paths, text)
            assert json.loads(text)["last_mysql_data_id"] == before["last_mysql_data_id"], (kind, paths)
        beyond_help = {
            get: ([newest, *copies], 6),
            (*get, "--show-files"): ([newest.with_name("9" * 20 + ".json")], 6),
            ("watermark", "get"): ([lake / "watermark" / "last_run_timestamp.txt"], 6),
            ("sync", "-t", "orders", "--redshift-only"): ([lake / "pipeline.json"], 6),
            ("watermark", "restore", "-t", "orders", "--file", str(orders.folder / "f")): (
                [orders.folder / "f"],
                2,
            ),
        }
        for args, (paths, code) in beyond_help.items():
            assert after(payload, paths, *args)[0] == code, (kind, args)


def test_a_commit_that_names_another_tables_file_is_damage(
    orders: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, name = orders.folder / "lake", orders.full_name("orders")
    victim = orders.folder / "outside.parquet"
    victim.write_bytes(b"not yours")
    newest = max((lake / "commits" / name).iterdir())
    commit = json.loads(newest.read_bytes())
    shutil.rmtree(lake / "watermark")
    for path in ("../../outside.parquet", "pipeline.json", "data/other.orders/x.parquet"):
        commit["files"][0]["path"] = path
        newest.write_text(json.dumps(commit))
        for args in (("watermark", "get"), ("s3clean", "clean", "--force"), ("sync", "--redshift-only")):
            code, text = answer(orders, capsys, *args, "-t", "orders")
            assert code == 6 or (code == 0 and path not in text), (args, text)
    assert victim.read_bytes() == b"not yours" and (lake / "pipeline.json").exists()


def test_text_in_a_document_cannot_control_the_terminal_or_add_lines(
    orders: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    file = orders.folder / "lake" / "pipeline.json"
    body = json.loads(file.read_bytes())
    file.write_text(json.dumps({**body, "warehouse": "x\n\n\nfloodmark: all is well\x1b[2J\x1b]0;t\x07"}))
    code, text = answer(orders, capsys, "sync", "-t", "orders", "--redshift-only")
    assert code == 2 and "\\x1b[2J" in text


# ---------------------------------------------------------------- secrets


def test_a_password_of_special_characters_shows_nowhere(
    workspace: Workspace, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    password = f"p@:/?#%41&='\"\\ é{secrets.token_hex(4)}"
    user = f"u_{secrets.token_hex(4)}"
    name = workspace.database.name
    link = workspace.database.connect()
    link.cursor().execute(f"CREATE USER {user}@'%%' IDENTIFIED BY %s", [password])
    link.cursor().execute(f"GRANT SELECT ON {name}.* TO {user}@'%'")
    link.close()
    workspace.execute(create_orders(), fill_orders(20))
    monkeypatch.setenv("HUSH", password)
    host = workspace.database.url.rpartition("@")[2]
    workspace.write(source={"url": f"mysql://{user}:${{HUSH}}@{host}"})
    log, file = workspace.folder / "log", str(workspace.file)
    assert workspace.sync("orders").ok
    loud = ("--debug", "--json-logs", "--log-file", str(log), "--config", file)
    try:
        assert main(["plan", "-t", "orders", *loud]) == 0
        assert main(["watermark", "get", "-t", "orders", "--json", *loud]) == 0
        workspace.execute(f"REVOKE SELECT ON {name}.* FROM {user}@'%'")
        assert main(["plan", "-t", "orders", *loud]) == 2
        workspace.execute(f"ALTER USER {user}@'%' IDENTIFIED BY 'another'")
        assert main(["plan", "-t", "orders", "--json", *loud]) == 2
    finally:
        workspace.execute(f"DROP USER {user}@'%'")
    out, err = capfd.readouterr()
    files = [p for p in workspace.folder.rglob("*") if p.is_file()]
    places = {str(p): p.read_bytes() for p in files} | {"out": out.encode(), "err": err.encode()}
    pieces = {password, password[-12:], json.dumps(password)[1:-1], repr(password)[1:-1]}
    assert len(places) > 8 and "floodmark" in log.read_text()
    for piece in pieces:
        assert [where for where, data in places.items() if piece.encode() in data] == []
