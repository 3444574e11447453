"""The configuration file: all of its mistakes, and who can read the secrets in it, or change it."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from floodmark import config as configuration
from floodmark.config import Config
from floodmark.doctor.check import Check, Section
from floodmark.errors import ConfigError
from floodmark.logs import told
from floodmark.yamlfile import Tree, parse

SECTION = Section("configuration")


def load(path: Path | None) -> tuple[Config | None, list[Check]]:
    """The configuration when it has no mistake, and what there is to say of it."""
    try:
        found = configuration.load(path)
    except ConfigError as error:
        return None, list(mistakes(error))
    tables = f"{len(found.tables)} in tables" if found.tables else "every table of the source"
    return found, [SECTION.ok("file", f"{found.path}, {tables}"), *secrets(found.path), *exposed(found)]


def mistakes(error: ConfigError) -> Iterator[Check]:
    """Each mistake of a file as a failure of its own."""
    first, *listed = error.message.split("\n")
    if not listed:
        yield SECTION.failure("file", first, error.hint or _remedy(first))
        return
    yield SECTION.failure("file", first.rstrip(":"), error.hint)
    for mistake in listed:
        place, _, what = mistake.strip().partition(": ")
        yield SECTION.failure(place, what, _remedy(what))


def _remedy(mistake: str) -> str | None:
    found = re.search(r"environment variables? (\w+)", mistake)
    return f"export {found[1]} in the shell, or the job, that runs floodmark" if found else None


def secrets(path: Path) -> Iterator[Check]:
    """Whether others can read a secret that stands in the file itself."""
    tree: Tree = None
    with suppress(OSError, ValueError, UnicodeDecodeError):
        tree = parse(path.read_bytes().decode("utf-8-sig"))[0]
    written = in_clear(tree)
    if not written:
        return
    if _mode(path) & (stat.S_IRGRP | stat.S_IROTH):
        yield SECTION.warning(
            "secrets",
            f"{', '.join(written)}: written in clear, in a file that other users can read",
            f"chmod 600 {path}; or write ${{NAME}} there and export NAME",
        )
    else:
        yield SECTION.ok("secrets", f"{', '.join(written)}: written in clear, readable by you alone")


def exposed(config: Config) -> Iterator[Check]:
    """Whether others can change the file, and so send its passwords elsewhere, or read a private key that it names."""
    if _mode(config.path) & (stat.S_IWGRP | stat.S_IWOTH):
        yield SECTION.warning(
            "rights",
            f"{config.path}: other users can change it, and with it where passwords are sent",
            f"chmod go-w {config.path}",
        )
    for name, service in (("source", config.source), ("warehouse", config.warehouse)):
        for kind, block in (("tls", service.tls), ("ssh", service.ssh)):
            key = block.key if block is not None else None
            if key is not None and _mode(key) & (stat.S_IRWXG | stat.S_IRWXO):
                yield SECTION.warning(
                    "rights",
                    f"{name}.{kind}.key: a private key that other users can read",
                    f"chmod 600 {key}",
                )


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def in_clear(tree: Tree) -> list[str]:
    """The keys whose value holds a secret that is not a `${NAME}`."""
    found = []
    for section, key in (("source", "url"), ("warehouse", "url"), ("store", "secret_access_key")):
        block = tree.get(section) if isinstance(tree, dict) else None
        value = block.get(key) if isinstance(block, dict) else None
        if not isinstance(value, str):
            continue
        if key == "url":
            login = value.partition("://")[2].rpartition("@")[0]
            value = login.partition(":")[2]
        if value and not _varied(value):
            found.append(f"{section}.{key}")
    spark = tree.get("spark") if isinstance(tree, dict) else None
    conf = spark.get("conf") if isinstance(spark, dict) else None
    for key, value in conf.items() if isinstance(conf, dict) else ():
        if isinstance(value, str) and any(secret and not _varied(secret) for secret in told(key, value)):
            found.append(f"spark.conf.{key}")
    return found


def _varied(value: str) -> bool:
    return "${" in value.replace("$${", "")
