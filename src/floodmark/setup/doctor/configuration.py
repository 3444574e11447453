"""Checks the configuration file: its mistakes, and whether others can read its secrets or change it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from floodmark.config import load as configuration
from floodmark.config.load import Config
from floodmark.config.yaml import Tree, parse
from floodmark.model.errors import ConfigError, Mistake, Mistakes
from floodmark.model.secrets import in_setting, of_url
from floodmark.setup.doctor.check import Check, Section

SECTION = Section("configuration")


def load(path: Path | None) -> tuple[Config | None, list[Check]]:
    """The configuration, if it has no mistakes, and the checks."""
    try:
        found = configuration.load(path)
    except ConfigError as error:
        return None, list(mistakes(error))
    tables = f"{len(found.tables)} in tables" if found.tables else "every table of the source"
    return found, [SECTION.ok("file", f"{found.path}, {tables}"), *secrets(found.path), *exposed(found)]


def mistakes(error: ConfigError) -> Iterator[Check]:
    """One failure for each mistake in the file."""
    found = error.mistakes if isinstance(error, Mistakes) else ()
    if not isinstance(error, Mistakes) or not error.listed:
        yield SECTION.failure("file", error.message, error.hint or next(map(_remedy, found), None))
        return
    yield SECTION.failure("file", error.summary, error.hint)
    for mistake in found:
        yield SECTION.failure(mistake.place, mistake.said, _remedy(mistake))


def _remedy(mistake: Mistake) -> str | None:
    if mistake.variable is None:
        return None
    return f"export {mistake.variable} in the shell, or the job, that runs floodmark"


def secrets(path: Path) -> Iterator[Check]:
    """Whether others can read a secret that is written in the file; one that came from a pipe is gone."""
    tree: Tree = None
    with suppress(OSError, ValueError, UnicodeDecodeError):
        if path.is_file():
            tree = parse(path.read_bytes().decode("utf-8-sig"))[0]
    written = in_clear(tree)
    if not written:
        return
    if _mode(path) & (stat.S_IRGRP | stat.S_IROTH):
        yield SECTION.warning(
            "secrets",
            f"{', '.join(written)}: in plain text, in a file that other users can read",
            f"chmod 600 {path}; or write ${{NAME}} instead and export NAME",
        )
    else:
        yield SECTION.ok("secrets", f"{', '.join(written)}: in plain text, readable only by you")


def exposed(config: Config) -> Iterator[Check]:
    """Whether others can change the file, and so send its passwords elsewhere, or read a private key that it names."""
    if _mode(config.path) & (stat.S_IWGRP | stat.S_IWOTH):
        yield SECTION.warning(
            "rights",
            f"{config.path}: other users can change it, and so where passwords are sent",
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
            value = of_url(value)
        if value and not _varied(value):
            found.append(f"{section}.{key}")
    store = tree.get("store") if isinstance(tree, dict) else None
    places = store.get("copies_to") if isinstance(store, dict) else None
    for n, place in enumerate(places if isinstance(places, list) else ()):
        secret = place.get("secret_access_key") if isinstance(place, dict) else None
        if isinstance(secret, str) and secret and not _varied(secret):
            found.append(f"store.copies_to.{n}.secret_access_key")
    spark = tree.get("spark") if isinstance(tree, dict) else None
    conf = spark.get("conf") if isinstance(spark, dict) else None
    for key, value in conf.items() if isinstance(conf, dict) else ():
        if isinstance(value, str) and any(
            secret and not _varied(secret) for secret in in_setting(key, value)
        ):
            found.append(f"spark.conf.{key}")
    return found


def _varied(value: str) -> bool:
    return "${" in value.replace("$${", "")
