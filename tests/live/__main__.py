"""`make redshift-live`: the contract suite on a real Redshift, in schemas and below a prefix of its own.

Standard output has the report; standard error has a line for each test while they run. Secrets come from the
environment only, never from arguments, which everybody on the machine can see.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

import pytest
import yaml

from floodmark.config.load import Config, load
from floodmark.config.values import url as read_url
from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.model.secrets import Scrubber, of_url
from tests.live.cluster import Cluster
from tests.live.mask import Mask
from tests.live.report import FOLDERS, OF_THE_STAND_IN, LiveReport, lines

EXAMPLE = (
    "make redshift-live 'URL=redshift://loader:${REDSHIFT_PASSWORD}@host:5439/dev' "
    "STORE=s3://bucket/prefix ROLE=arn:aws:iam::123456789012:role/loader"
)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make redshift-live ARGS=",
        description="URL, STORE and ROLE (or CONFIG), and SECOND come from the environment.",
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of the timed load (10,000,000)")
    parser.add_argument("--minutes", type=float, default=120, help="start no test after this time (120)")
    parser.add_argument("--only", help="only tests whose name or module contains this, as in pytest's -k")
    parser.add_argument(
        "--report", type=Path, default=Path("build/redshift-live.json"), help="the report as JSON"
    )
    return parser.parse_args()


def settings() -> Config:
    """The configuration: a file, or one made of URL, STORE and ROLE. The source is never contacted."""
    if config := os.environ.get("FLOODMARK_LIVE_CONFIG"):
        found = load(Path(config))
    else:
        given = {name: os.environ.get(f"FLOODMARK_LIVE_{name}", "") for name in ("URL", "STORE", "ROLE")}
        if missing := [name for name, text in given.items() if not text]:
            raise ConfigError(f"{' and '.join(missing)} must be set", hint=f"for example: {EXAMPLE}")
        document = {
            "source": {"url": "mysql://nobody@localhost/none"},
            "store": {"url": given["STORE"]},
            "warehouse": {"url": given["URL"], "iam_role": given["ROLE"]},
        }
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "floodmark.yaml")
            file.touch(0o600)
            file.write_text(yaml.safe_dump(document))
            try:
                found = load(file)
            except FloodmarkError as error:
                said = error.message.replace(f"{file}", "URL, STORE or ROLE")
                raise ConfigError(said, hint=error.hint) from None
    if found.warehouse.iam_role is None:
        raise ConfigError(
            "warehouse.iam_role is not set, and COPY needs a role", hint="`default` is the cluster's own"
        )
    return found


def second_user(config: Config, text: str) -> tuple[str, str] | None:
    """The user and password of a URL that leads to the same database."""
    if not text:
        return None
    try:
        found = read_url(text)
    except ValueError as error:
        raise ConfigError(f"SECOND {error}") from None
    spec = config.warehouse
    if (found.host, found.port or 5439, found.path) != (spec.host, spec.port, spec.database):
        raise ConfigError("SECOND leads to another database than URL")
    return found.user or "", found.password or ""


def run(report: LiveReport, only: str | None) -> int:
    """Run the tests and remove what they made; returns the exit code."""

    def stop(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    printed = io.StringIO()
    arguments = [
        "--import-mode=importlib",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "-o",
        "faulthandler_timeout=0",
    ]
    arguments += [f"--ignore={OF_THE_STAND_IN}"]
    try:
        with contextlib.redirect_stdout(printed):
            code = pytest.main([*arguments, *(["-k", only] if only else []), *FOLDERS], plugins=[report])
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the removal has time limits of its own
        report.say("removing the schemas and the files")
        report.left = report.cluster.remove()
        report.seconds = time.monotonic() - report.began
    if code == pytest.ExitCode.INTERRUPTED and report.stopped is None:
        report.stopped = "interrupted"
        return 130
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        report.say(printed.getvalue())
        report.stopped = f"pytest ended with {code}"
    return report.code


def main() -> int:
    given = options()
    written = [of_url(os.environ.get(f"FLOODMARK_LIVE_{name}", "")) for name in ("URL", "SECOND")]
    scrub = Scrubber([password for password in written if not password.startswith("${")])
    # A descriptor of its own: pytest captures the standard one while a test runs.
    errors = os.fdopen(os.dup(2), "w", buffering=1)

    def say(text: str) -> None:
        print(scrub(text), file=errors, flush=True)

    try:
        config = settings()
        scrub.learn(config)
        second = second_user(config, os.environ.get("FLOODMARK_LIVE_SECOND", ""))
        mask = Mask.of(config)
        if second:
            scrub.add([second[1]])
            mask.user(second[0])
        cluster = Cluster(config, given.rows, second)
        mask.user(cluster.begin())
    except FloodmarkError as error:
        say(f"redshift-live: {error.message}" + (f"\n  {error.hint}" if error.hint else ""))
        return error.code
    say(f"schemas {cluster.name}*, files below {cluster.files.uri('')}; both are removed at the end")
    report = LiveReport(cluster, mask, given.minutes, say)
    code = run(report, given.only)
    document = json.loads(scrub(json.dumps(report.as_json(), default=str, ensure_ascii=False)))
    given.report.parent.mkdir(parents=True, exist_ok=True)
    given.report.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print("\n".join(lines(document, shutil.get_terminal_size().columns if sys.stdout.isatty() else None)))
    say(f"the report is in {given.report}")
    return code


if __name__ == "__main__":
    sys.exit(main())
