"""What all commands share: the global options (before and after the command), tables, timestamps.

The global options are parameters of every command and group, collected into one `Settings`, so that
`floodmark --json sync …` and `floodmark sync … --json` are the same.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from floodmark.cli import logs, printing
from floodmark.cli.progress import BarProgress, PlainProgress, SilentProgress
from floodmark.config.values import duration as seconds_of
from floodmark.model import log_lines
from floodmark.model.errors import ConfigError, FloodmarkError, Mistakes
from floodmark.model.run import new_run
from floodmark.model.secrets import Scrubber
from floodmark.model.text import duration, shown
from floodmark.model.times import timestamp

if TYPE_CHECKING:
    from floodmark.api import Pipeline
    from floodmark.config.load import Config
    from floodmark.model.results import Failure

F = TypeVar("F", bound=Callable[..., Any])
D = TypeVar("D", bound=Mapping[str, Any])

_DAY, _TIME = re.compile(r"\d{4}-\d\d-\d\d"), re.compile(r"\d\d:\d\d(:\d\d(\.\d+)?)?")


def split_timestamp(words: Sequence[str]) -> str | None:
    """A timestamp that was not quoted, so that the shell has made two words of it."""
    for day, clock in pairwise(words):
        if _DAY.fullmatch(day.rpartition("=")[2]) and _TIME.fullmatch(clock):
            return f"{day.rpartition('=')[2]} {clock}"
    return None


@dataclass
class Settings:
    """The global options of one command line, and what depends on them."""

    config: Path | None = None
    json: bool = False
    debug: bool = False
    quiet: bool = False
    json_logs: bool = False
    log_file: Path | None = None
    run: str = field(default_factory=new_run)
    scrub: Scrubber = field(default_factory=Scrubber)
    stack: ExitStack = field(default_factory=ExitStack)
    logging: bool = False
    unquoted: str | None = None  # a timestamp that the shell has split in two
    stopped: Callable[[], int | None] = lambda: None  # the exit code of a signal that was received
    left: Callable[[], str] = lambda: ""  # what the command leaves behind when it is stopped now
    began: float = field(default_factory=time.monotonic)
    totals: dict[str, Any] = field(default_factory=dict)  # what the run's tables add up to

    @classmethod
    def foreseen(cls, arguments: Sequence[str]) -> Settings:
        """The flags that matter when the command line itself is wrong."""
        before = list(arguments)
        before = before[: before.index("--")] if "--" in before else before
        return cls(
            json="--json" in before, debug="--debug" in before, json_logs="--json-logs" in before,
            unquoted=split_timestamp(before),
        )  # fmt: skip

    def start_logs(self) -> None:
        """Starts logging as the options say, until the command ends."""
        self.logging = True
        self.stack.enter_context(logs.levels(self.debug))
        self.stack.enter_context(logs.attach(logs.to_stderr(self)))
        if self.log_file is not None:
            self.stack.enter_context(logs.attach(logs.to_file(self, self.log_file)))

    def load(self) -> Config:
        """The configuration; from here on its secrets are masked."""
        from floodmark.host.limits import check_addresses

        check_addresses()
        from floodmark.config import load as config

        self.scrub.add(os.environ.get(name, "") for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
        loaded = config.load(self.config)
        self.scrub.learn(loaded)
        return loaded

    def progress(self) -> SilentProgress:
        """The progress that fits where stderr goes."""
        kind: type[SilentProgress] = SilentProgress  # the log, or the document, has the notes
        if not (self.quiet or self.json_logs or self.json):
            bars = sys.stderr is not None and printing.has_colour(sys.stderr)
            kind = BarProgress if bars else PlainProgress
        return kind(self.scrub, lambda: self.stopped() is not None)

    def pipeline(self) -> Pipeline:
        """The library on this configuration, under the command's run."""
        config = self.load()
        from floodmark.api import Pipeline

        return Pipeline(config, run=self.run)

    def result(
        self, document: D, lines: Callable[[D], list[str]], code: int = 0, free_text: bool = False
    ) -> int:
        """Prints the document with `--json`, else its lines; `free_text`: they quote other systems. Returns the exit code."""
        if self.json:
            printing.emit_json(document, self.scrub)
        else:
            (self.say if free_text else printing.emit_lines)(lines(document))
        return code

    def complain_of(self, errors: Sequence[FloodmarkError | Failure | None]) -> None:
        """The errors of several tables, equal ones once."""
        for error in printing.together([error for error in errors if error]):
            self.complain(error)

    def say(self, lines: Sequence[str]) -> None:
        """A result that quotes other systems, or a part of it."""
        printing.emit_lines([self.scrub(line) for line in lines])

    def end(self, code: int) -> None:
        """Logs how the command ended."""
        if not self.logging:
            return  # help, or the version
        seconds = time.monotonic() - self.began
        message = f"ended with exit code {code} after {duration(seconds)}"
        log_lines.tell(
            logs.logger, logging.INFO, "run_end", message,
            exit_code=code, seconds=round(seconds, 3), **self.totals,
        )  # fmt: skip

    def complain(self, error: FloodmarkError | Failure, cause: BaseException | None = None) -> None:
        """An error to stderr (one or two lines, or a JSON log line) and to the log file."""
        if not self.logging:
            with suppress(ConfigError):  # this error came first
                self.start_logs()
        from floodmark.model.results import Failure

        failure = Failure.of(printing.scrub_document(error.as_json(), self.scrub))
        log_lines.tell(
            logs.logger, logging.ERROR, "error", failure.message, table=failure.table, said=True, cause=cause,
            exit_code=failure.code, kind=failure.kind, hint=failure.hint,
        )  # fmt: skip
        if self.json_logs:
            return
        for line in printing.error_lines(failure, listed=isinstance(cause, Mistakes) and cause.listed):
            printing.to_stderr(line)
        if self.debug and cause is not None:
            trace = self.scrub("".join(traceback.format_exception(cause)).rstrip())
            printing.to_stderr("\n".join(shown(line) for line in trace.split("\n")), fit=False)


def _keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value and parameter.name:
        setattr(ctx.ensure_object(Settings), parameter.name, value)


_FILE = click.Path(path_type=Path)
_GLOBAL: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("-c", "--config"), {"type": _FILE, "metavar": "FILE", "help":
     "The configuration file. Default: $FLOODMARK_CONFIG, then ./floodmark.yaml."}),
    (("--json",), {"is_flag": True, "help": "Print one JSON document on stdout, and nothing else there."}),
    (("--debug",), {"is_flag": True, "help": "Log everything to stderr, with tracebacks."}),
    (("--quiet",), {"is_flag": True, "help":
     "Print only errors and answers: a sync or verify that succeeds prints nothing."}),
    (("--json-logs",), {"is_flag": True, "help": "Write logs and progress as JSON lines to stderr."}),
    (("--log-file",), {"type": _FILE, "metavar": "FILE", "help": "Append all logs to FILE."}),
)  # fmt: skip


def _show_help(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        printing.emit(ctx.get_help())
        ctx.exit()


class _Shared(click.Command):
    """A command that also takes the global options, and lists them separately."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._globals = [
            click.Option(names, expose_value=False, callback=_keep, **more) for names, more in _GLOBAL
        ]
        self.params += self._globals

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """The option that prints the help the way results are printed: a full disk is not a bug."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Arguments appear in the usage line and are explained in the text.
        own = [p for p in self.get_params(ctx) if isinstance(p, click.Option) and p not in self._globals]
        shared: list[click.Parameter] = list(self._globals)
        for title, parameters in (("Options", own), ("Global options, before or after the command", shared)):
            records = [record for p in parameters if (record := p.get_help_record(ctx)) is not None]
            with formatter.section(title):
                formatter.write_dl(records)


class Command(_Shared):
    """A command of Floodmark."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.ensure_object(Settings).start_logs()
        return super().invoke(ctx)


class Group(_Shared, click.Group):
    """Commands of Floodmark; in its help they come before the options."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        self.format_commands(ctx, formatter)
        _Shared.format_options(self, ctx, formatter)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def command(
    name: str | None = None, of: click.Group | None = None
) -> Callable[[Callable[..., int]], click.Command]:
    """A command of Floodmark, one of a group's if that is given; its function gets the `Settings` and returns the exit code."""

    def made(function: Callable[..., int]) -> click.Command:
        with_settings = click.make_pass_decorator(Settings, ensure=True)(function)
        one = click.command(name, cls=Command)(with_settings)
        if of is not None:
            of.add_command(one)
        return one

    return made


def parse_by(parse: Callable[[str], Any]) -> Callable[[click.Context, click.Parameter, str | None], Any]:
    """The callback of an option whose text means something else; `parse` refuses it with a ValueError."""

    def check(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error), ctx, parameter) from None

    return check


def flag(name: str, help: str, *others: str) -> Callable[[F], F]:
    """An option that is given or not; `others` are further spellings of it, and its parameter's name."""
    return click.option(name, *others, is_flag=True, help=help)


def number(
    name: str,
    help: str,
    least: int = 1,
    default: int | None = None,
    metavar: str = "N",
    most: int | None = None,
) -> Callable[[F], F]:
    """An option that takes a whole number; a default is shown."""
    kind = click.IntRange(least, most)
    shown = default is not None
    return click.option(name, type=kind, default=default, show_default=shown, metavar=metavar, help=help)


def path_option(*names: str, help: str, metavar: str = "FILE", **more: Any) -> Callable[[F], F]:
    """An option that takes a file."""
    kind = click.Path(path_type=Path, dir_okay=False)
    return click.option(*names, type=kind, metavar=metavar, help=help, **more)


def timestamp_option(name: str, help: str, future: bool = True) -> Callable[[F], F]:
    """An option that takes a timestamp."""
    check = parse_by(lambda value: timestamp(value, None if future else datetime.now(UTC)))
    return click.option(name, metavar="TS", callback=check, help=help)


def duration_option(name: str, help: str, metavar: str = "DURATION", least: float = 1) -> Callable[[F], F]:
    """An option that takes a duration, in seconds to the command."""

    def check(value: str) -> float:
        try:
            seconds = seconds_of(value)
        except ValueError as error:
            raise ValueError(f"{value!r} {error}") from None
        if seconds < least:
            raise ValueError("must be at least 1s")
        return seconds

    return click.option(name, metavar=metavar, callback=parse_by(check), help=help)


def _named(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if any(not name.strip() for name in value):
        raise click.BadParameter("the table name is empty", ctx, parameter)
    return tuple(dict.fromkeys(value))


def _one(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> str:
    names = _named(ctx, parameter, value)
    if len(names) != 1:
        raise click.BadParameter("one table at a time", ctx, parameter)
    return names[0]


def _known_tables(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The tables to offer for what the shell has so far, without those that the command line has already."""
    from floodmark.cli.completion import fitting, table_names

    given = ctx.params.get(parameter.name or "") or ()
    names = table_names(ctx.ensure_object(Settings).config)
    return fitting([name for name in names if name not in given], incomplete)


_tables = partial(click.option, "-t", "--table", metavar="TABLE", multiple=True, shell_complete=_known_tables)
one_table = _tables(required=True, callback=_one, help="The table, as schema.table.")
maybe_table = _tables(
    callback=lambda ctx, parameter, value: _one(ctx, parameter, value) if value else None,
    help="The table, as schema.table.",
)


def many_tables(text: str) -> Callable[[F], F]:
    """`-t T`, any number of times."""
    return _tables("tables", callback=_named, help=text)


# For what asks: --force answers too, and where it also allows more, it is an option of its own.
_ANSWER = "Don't ask for confirmation."
yes = flag("--yes", _ANSWER, "-y")
yes_or_force = flag("--yes", _ANSWER, "-y", "--force", "yes")
dry_run = flag("--dry-run", "Only print what would be removed.")


def tables_or_all(text: str = "The tables that `sync --all` copies.") -> Callable[[F], F]:
    """`-t T`, any number of times, or `--all`, of which `text` says what it means."""
    named, every = (
        many_tables("A table, as schema.table; repeatable."),
        flag("--all", text, "all_tables"),
    )
    return lambda function: named(every(function))


def terminal() -> bool:
    """Whether there is someone to ask."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, yes: bool) -> None:
    """Asks on a terminal; without one, requires --yes or --force. Raises ConfigError if the answer is no."""
    if yes:
        return
    if not terminal():
        raise ConfigError(
            f"{question} There is no terminal to confirm on",
            hint="use --yes or --force to proceed without confirmation",
        )
    if not click.confirm(shown(question), err=True):
        raise ConfigError("nothing was changed")


def one_choice(tables: Sequence[str], all_tables: bool) -> None:
    """Tables are named, or all are meant."""
    if tables and all_tables:
        raise click.UsageError("-t and --all can't be combined")
    if not tables and not all_tables:
        raise click.UsageError("which tables? Pass -t schema.table, or --all")
