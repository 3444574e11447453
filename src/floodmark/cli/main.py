"""The command line: commands, exit codes, errors.

Whatever happens below ends here as the contract's exit code, with one or two lines on stderr and, with
`--json`, one document on stdout. Heavy imports wait inside the commands, so that help and mistakes are
answered at once.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

import click

from floodmark import __version__
from floodmark.cli import (
    changes,
    clean,
    completion,
    monitoring,
    plan,
    printing,
    setup,
    sync,
    verify,
    watermark,
)
from floodmark.cli.options import Group, Settings
from floodmark.cli.signals import CODES, Signals, interrupted
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted, bug

MAIN = threading.main_thread()


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="floodmark")
def app() -> None:
    """Copies MySQL tables into a warehouse, incrementally: MySQL → S3 (Parquet) → Redshift or DuckDB.

    Every committed row arrives exactly once, whatever fails on the way; after a failure, run the command again.

    \b
    First steps:
      floodmark init --source mysql://reader:secret@host:3306/shop
                                               writes floodmark.yaml, without the password
      floodmark doctor                         checks the setup and says what to fix
      floodmark plan -t shop.orders            what a sync would read, and each column's type
      floodmark sync -t shop.orders            copies what is new; run it again for more
      floodmark watermark get -t shop.orders   how far it got

    \b
    Exit codes: 0 done, 1 a bug, 2 usage or configuration, 3 another run holds the table,
    4 a service failed (run again, nothing is lost), 5 the warehouse's answer was lost (run again),
    6 data or state that is not safe to continue with, 7 differences found, 130/143 interrupted.
    """


_COMMANDS: tuple[click.Command, ...] = (
    *setup.COMMANDS, sync.sync, plan.plan, changes.changes, verify.verify, watermark.status, watermark.watermark, watermark.table,
    clean.s3clean, *monitoring.COMMANDS, setup.demo, completion.completion,
)  # fmt: skip
for command in _COMMANDS:
    app.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, the process's own by default, and return its exit code."""
    if arguments is not None:
        return _private(arguments)
    _open_streams()
    # numpy's linear algebra, which nothing here uses, would start a thread per core, and its import would set and unset
    # the second one. The environment does not change after this: getenv in another thread may read what that frees.
    for name in ("OPENBLAS_NUM_THREADS", "OPENBLAS_MAIN_FREE"):
        os.environ.setdefault(name, "1")
    if instruction := os.environ.get(completion.VARIABLE):
        return _leave(completion.answer(app, instruction))
    return _leave(_private(sys.argv[1:]))


def _private(arguments: Sequence[str]) -> int:
    """Keeps everything that a command creates private to its user, including what DuckDB, Spark and their helpers create."""
    before = os.umask(0o077)
    try:
        return _main(arguments)
    finally:
        os.umask(before)


def _open_streams() -> None:
    """Replaces a closed stdin, stdout or stderr with /dev/null.

    Otherwise the next file or connection would get its number, and whatever is printed would end up there.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False)
            setattr(sys, name, stream)


def _main(arguments: Sequence[str]) -> int:
    given = list(arguments)
    settings = Settings.foreseen(given)
    last_words = Signals(lambda error: _failed(error, error, settings), lambda: settings.left())
    with settings.stack, last_words as signals:
        settings.stopped = lambda: signals.code
        code = _code(given, settings, signals)
        settings.end(code)
        return code


def _code(given: list[str], settings: Settings, signals: Signals) -> int:
    """Runs the command and reports its error; returns the exit code."""
    try:
        code = _answer(given, settings)
    except click.exceptions.Exit as done:
        return int(done.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        return _failed(_told(error, signals, settings), error, settings)
    # A library may have wrapped the interruption: then the tables did not fail on their own.
    if signals.code is not None and code not in (0, signals.code):
        settings.complain(interrupted(signals.code, settings.left()))
        return signals.code
    return code


def _leave(code: int) -> NoReturn:
    """Ends the process as the interpreter would, but does not take the modules apart.

    Threads may still be running in them, above all those of Spark's bridge, and DuckDB's would then complain on stderr. An
    interrupted process ends even if a thread still waits for a service: what that has not committed never happened.
    """
    waiting = any(not t.daemon for t in threading.enumerate() if t is not MAIN)
    if code not in CODES.values() or not waiting:
        try:
            # What the interpreter does before it takes modules apart; it has no other names for that.
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
        except KeyboardInterrupt:
            code = CODES[signal.SIGINT]
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _answer(given: list[str], settings: Settings) -> int:
    # Not click's own main: it mistakes any broken pipe, even a service's, for a closed stdout.
    with app.make_context("floodmark", given, obj=settings) as ctx:
        return int(app.invoke(ctx) or 0)


def _told(error: BaseException, signals: Signals, settings: Settings) -> FloodmarkError:
    """The error as the operator should see it."""
    if isinstance(error, Interrupted):
        return error
    if signals.code is not None:
        return interrupted(signals.code, settings.left())
    if isinstance(error, FloodmarkError):
        return error
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return interrupted(130, settings.left())
    if isinstance(error, click.UsageError):
        where = error.ctx.command_path if error.ctx is not None else "floodmark"
        if settings.unquoted is not None:
            return ConfigError(
                f"the shell has split the timestamp {settings.unquoted} in two",
                hint=f'quote it: "{settings.unquoted}"',
            )
        return ConfigError(_sentence(error), hint=f"see `{where} --help`")
    if isinstance(error, click.ClickException):
        return ConfigError(error.format_message())
    return bug(error)


def _sentence(error: click.UsageError) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return "no command given"
    message = error.format_message().rstrip(".")
    return message[:1].lower() + message[1:]


def _failed(told: FloodmarkError, error: BaseException, settings: Settings) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not (settings.json or settings.json_logs):
        click.echo(error.format_message(), err=True)
        return told.code
    settings.complain(told, error)
    if settings.json:
        try:
            printing.emit_json(printing.failure(told), settings.scrub)
        except FloodmarkError as unwritten:
            settings.complain(unwritten)
    return told.code
