"""Checks the configuration file: its mistakes, and whether others can read its secrets or change it."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from floodmark.config import load as configuration
from floodmark.config.file import Tree, parse
from floodmark.config.load import Config
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
    return [
        place
        for place, text in _texts(tree)
        if any(secret and "${" not in secret.replace("$${", "") for secret in _secrets(place, text))
    ]


def _texts(tree: Tree, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text of the file, and the keys that lead to it: `store.copies_to.0.url`."""
    if isinstance(tree, str):
        yield place.removeprefix("."), tree
    elif tree is not None:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _texts(value, f"{place}.{key}")


def _secrets(place: str, text: str) -> Iterable[str]:
    if place in ("source.url", "warehouse.url"):
        return [of_url(text)]
    if re.fullmatch(r"store\.(copies_to\.\d+\.)?secret_access_key", place):
        return [text]
    section, _, setting = place.partition(".conf.")
    return in_setting(setting, text) if section == "spark" else []
