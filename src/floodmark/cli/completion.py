"""The command `completion`, and the words that the shell requests while a command line is being typed.

click implements the protocol: the shell runs `floodmark` with a variable set, and reads words from its output.
A shell waits for that, so it takes a second at most, and no failure is ever printed.
"""

from __future__ import annotations

import logging
import queue
import re
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import click
from click.shell_completion import get_completion_class, shell_complete

from floodmark.cli import options
from floodmark.cli.options import Settings

VARIABLE = "_FLOODMARK_COMPLETE"
SHELLS = ("bash", "zsh", "fish")
# Seconds that an S3 server may take to list the tables. Beyond that, only those of the configuration are offered.
PATIENCE = 0.6
# Other names would need quotes, and the shells' scripts add none.
_PLAIN = re.compile(r"\w[\w.-]*")


@options.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(settings: Settings, shell: str) -> int:
    """Print the script that completes commands, options and tables in SHELL: bash, zsh or fish.

    Tables come from the configuration and from the store, never from MySQL; a store that does not answer at once is left out.

    \b
    Examples:
      eval "$(floodmark completion bash)"                                    in ~/.bashrc
      eval "$(floodmark completion zsh)"                                     in ~/.zshrc, after compinit
      floodmark completion fish > ~/.config/fish/completions/floodmark.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "floodmark", VARIABLE).source()
    return settings.result({"ok": True, "shell": shell, "script": script}, lambda _: script.split("\n"))


def answer(app: click.Command, instruction: str) -> int:
    """Answers a shell: prints the matching words. If anything fails, prints nothing."""
    logging.disable(logging.CRITICAL)
    with suppress(Exception):
        return shell_complete(app, {}, "floodmark", VARIABLE, instruction)
    return 1


def fitting(names: list[str], incomplete: str) -> list[str]:
    """The names that begin with what was typed; if there are none, those whose table does, whatever its schema."""
    plain = sorted({name for name in names if _PLAIN.fullmatch(name)})
    begun = [name for name in plain if name.startswith(incomplete)]
    return begun or [name for name in plain if name.partition(".")[2].startswith(incomplete)]


def table_names(config: Path | None) -> list[str]:
    """The tables of the configuration and of the store; without the store's if its server takes too long."""
    from floodmark.config.load import glimpse

    named, spec = glimpse(config)
    if spec is not None:
        from floodmark.store.store import Store

        answers: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        remote = spec.url.startswith("s3://")

        def look() -> None:
            found: list[str] = []
            with suppress(Exception):
                found = [unquote(name) for name in Store(spec).folders("commits/")]
            answers.put(found)

        if remote:
            threading.Thread(target=look, daemon=True).start()
        else:
            look()
        with suppress(queue.Empty):
            named += answers.get(timeout=PATIENCE if remote else 0)
    return [name for name in named if not any(c in name for c in "*?[")]
