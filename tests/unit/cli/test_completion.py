"""`completion` and what it completes: in a real bash always, in real zsh and fish with FLOODMARK_LONG=1."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from floodmark.cli import completion
from floodmark.cli.main import main

FLOODMARK = Path(sys.executable).parent  # the folder of the command
SHELLS = Path(sys.executable).parents[1] / "shells"  # where scripts/setup unpacks what the machine lacks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration whose password is not set, and a store with two tables."""
    (tmp_path / "floodmark.yaml").write_text(
        'source: {url: "mysql://reader:${NOT_SET}@db/shop"}\n'
        'tables: {orders: {}, shop.items: {mode: full}, "shop.*_log": {}}\n'
    )
    for name in ("shop.stored", "archive.old", "shop.needs%20quotes", "shop.%24%28id%29"):
        (tmp_path / "lake" / "commits" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    return tmp_path


def offered(incomplete: str, config: Path | None = None) -> list[str]:
    return completion.fitting(completion.table_names(config), incomplete)


def test_tables_are_those_of_the_configuration_and_of_the_store(folder: Path) -> None:
    assert offered("") == ["archive.old", "shop.items", "shop.orders", "shop.stored"]
    assert offered("shop.o") == ["shop.orders"]


def test_a_table_is_found_without_its_schema(folder: Path) -> None:
    assert offered("sto") == ["shop.stored"]


@pytest.mark.parametrize(
    "text", ["", "tables: [", "- a\n", "tables: [a, b]", "source: 7\nstore: {url: 9, more: 1}", "\0"]
)
def test_a_file_with_mistakes_is_read_as_far_as_it_goes(folder: Path, text: str) -> None:
    (folder / "floodmark.yaml").write_text(text)
    assert set(offered("")) <= {"archive.old", "shop.stored"}


def test_without_a_configuration_there_is_nothing_to_offer(folder: Path) -> None:
    assert offered("", folder / "missing.yaml") == []


def test_a_server_that_is_silent_leaves_the_tables_of_the_configuration(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with (folder / "floodmark.yaml").open("a") as file:
            endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
            file.write(
                f"store: {{url: 's3://b/p', endpoint: '{endpoint}', access_key_id: a, secret_access_key: b}}\n"
            )
        assert offered("") == ["shop.items", "shop.orders"]


@pytest.mark.parametrize("shell", completion.SHELLS)
def test_the_script_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"{completion.VARIABLE}={shell}_complete" in script
    assert main(["completion", shell, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "ok": True,
        "shell": shell,
        "script": script.removesuffix("\n"),
    }


def test_a_shell_that_we_do_not_know_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert "bash" in capsys.readouterr().err


def test_bash_gets_tables_commands_and_choices_and_no_noise(folder: Path) -> None:
    lines = ["sync -t shop.o", "--config other.yaml sync -t ''", "water", "sync --strategy inter"]
    script = 'eval "$(floodmark completion bash)"\n'
    for line in lines:
        words = f"floodmark {line}".split()
        script += f"COMP_WORDS=({' '.join(words)}); COMP_CWORD={len(words) - 1}; COMPREPLY=()\n"
        script += '_floodmark_completion floodmark; echo "${COMPREPLY[*]}"\n'
    (folder / "other.yaml").write_text("tables: {a.b: {}}\nstore: {url: ./nowhere}\n")
    done = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True,
        env={**os.environ, "PATH": f"{FLOODMARK}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert (done.stdout.splitlines(), done.stderr) == (["shop.orders", "a.b", "watermark", "inter-table"], "")


def shell(name: str, home: Path) -> tuple[list[str], dict[str, str], str]:
    """A shell's command line, its environment and how it loads its completion; skips if it is not installed."""
    env = {
        **os.environ,
        "PATH": f"{FLOODMARK}:{os.environ['PATH']}",
        "HOME": str(home),
        "TERM": "xterm",
        "PS1": "> ",
    }
    own = shutil.which(name) or shutil.which(name, path=f"{SHELLS}/bin:{SHELLS}/usr/bin")
    if own is None:
        pytest.skip(f"{name} is not installed, and apt-get could not download it")
    libraries = next(SHELLS.glob("usr/lib/*/libpcre2-32.so.0"), None)
    if name == "bash":
        return [own, "--norc", "-i"], env, 'eval "$(floodmark completion bash)"'
    if name == "fish":
        if libraries and own.startswith(str(SHELLS)):
            env["LD_LIBRARY_PATH"] = str(libraries.parent)
        return [own, "--no-config", "-i"], env, "floodmark completion fish | source"
    if own.startswith(str(SHELLS)):  # before it loads its line editor
        modules = next(SHELLS.glob("usr/lib/*/zsh/*"))
        functions = " ".join(str(path) for path in (SHELLS / "usr/share/zsh").rglob("*") if path.is_dir())
        (home / ".zshenv").write_text(f"module_path=({modules})\nfpath=({functions})\n")
    return (
        [own, "-i"],
        {**env, "ZDOTDIR": str(home)},
        'autoload -U compinit; compinit -u -D; eval "$(floodmark completion zsh)"',
    )


ESCAPES = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>()][0B]?)")


class Terminal:
    """A program on its own terminal."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, env)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.end, text.encode())

    def wait_for(self, pattern: str) -> None:
        deadline = time.monotonic() + 120
        while not re.search(pattern, self.seen):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.end], [], [], 0.2)[0]:
                self.seen += ESCAPES.sub("", os.read(self.end, 65536).decode(errors="replace"))

    def close(self) -> None:
        os.kill(self.pid, 9)
        os.close(self.end)
        os.waitpid(self.pid, 0)


@pytest.mark.long
@pytest.mark.parametrize("name", completion.SHELLS)
def test_the_tab_key_completes_a_table(name: str, folder: Path) -> None:
    command, env, load = shell(name, folder)
    terminal = Terminal(command, env)
    try:
        terminal.type(f"{load}; echo re''ady\n")
        terminal.wait_for("ready")
        terminal.type("floodmark sync -t shop.st\t")
        terminal.wait_for(r"shop\.stored")
    finally:
        terminal.close()
