"""docs/tutorial.md from its first statement to its last, on a server of its own; each command prints what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.setup.services.databases import DatabaseServer, MariaDB
from tests.conftest import Floodmark, Result
from tests.support.pages import Example, console, examples, words

PAGE = "docs/tutorial.md"
FOLDER = "/srv/floodmark"  # on the page
PASSWORD = "tutor1al-s3cret"

# Progress and waits depend on the machine.
PROGRESS = re.compile(r"starting Spark|saving Spark's classes|.*: (waiting|extracting|loading|verifying)\b")


def masked(line: str) -> str:
    """A line without what differs from run to run: numbers, times, hosts and the widths of columns."""
    text = re.sub(r"on host \S+", "on host …", line)
    text = re.sub(r"\d(?:[\d,.:_-]*[a-f\d])?[a-f\d]*", "#", text)  # not the colon behind a run's id
    text = re.sub(r"(?:# (?:d|h|min) )*# s\b", "# s", text)
    text = re.sub(r"# (?:k|M|G)?B\b", "# B", text)
    return " ".join(text.split())


def told(printed: list[str]) -> list[str]:
    """The lines of a page's output that must be there."""
    kept = [line for line in printed if line.strip() and not PROGRESS.match(line)]
    return [masked(line) for line in kept if not line.startswith("[exit code ")]


def expected_code(printed: list[str]) -> int:
    return next((int(line[11:-1]) for line in printed if line.startswith("[exit code ")), 0)


def statements(example: Example) -> Iterator[str]:
    body = re.sub(r"--[^\n]*", "", example.body)
    yield from (part.strip() for part in body.split(";") if part.strip())


class Reader:
    """A reader who follows the page."""

    def __init__(self, server: DatabaseServer, floodmark: Floodmark, folder: Path) -> None:
        self.server = server
        self.floodmark = floodmark
        self.folder = folder
        self.env = {"MYSQL_PASSWORD": PASSWORD}

    def execute(self, example: Example) -> None:
        """The statements of a block, in one session."""
        link = self.server.connect()
        try:
            with link.cursor() as cursor:
                for statement in statements(example):
                    text = statement.replace("'…'", f"'{PASSWORD}'")
                    if isinstance(self.server, MariaDB):
                        text = text.replace("cte_max_recursion_depth", "max_recursive_iterations")
                    cursor.execute(text)
            link.commit()
        finally:
            link.close()

    def run(self, command: str) -> Result:
        if "kill -9" in command:
            return self._killed(words(command.partition("#")[0]))
        if command.startswith("floodmark "):
            line = command.replace("127.0.0.1:3306", f"127.0.0.1:{self.server.port}")
            return self.floodmark(*words(line), env=self.env, timeout=600)
        env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(command, shell=True, cwd=self.folder, env=env, capture_output=True, text=True)
        return Result(done.returncode, done.stdout, done.stderr)

    def _killed(self, arguments: list[str]) -> Result:
        """Kills the command once it has committed some rows and not all of them."""
        process = self.floodmark.start(*arguments, env=self.env)
        log = self.folder / "lake" / "commits" / "shop.orders"
        before = len(list(log.glob("*.json")))
        until = time.monotonic() + 300
        # One commit more is the claim; the next one has rows.
        while len(list(log.glob("*.json"))) < before + 2:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.01)
        process.kill()
        out, err = process.communicate(60)
        return Result(137, out, err)


@pytest.mark.long
def test_the_tutorial_leads_where_it_says(
    new_server: Callable[[], DatabaseServer], floodmark: Floodmark, tmp_path: Path
) -> None:
    ran, wrong = 0, list[str]()
    with new_server() as server:
        reader = Reader(server, floodmark, tmp_path)
        for example in examples(PAGE):
            if example.kind == "sql":
                reader.execute(example)
            for command, printed in console(example) if example.kind == "console" else ():
                result = reader.run(command)
                ran += 1
                output = (result.stdout + result.stderr).replace(str(tmp_path), FOLDER)
                output = output.replace(f"127.0.0.1:{server.port}", "127.0.0.1:3306")
                print(f"$ {command}\n{output}", flush=True)  # with -s: what the page should show
                assert result.code == expected_code(printed), f"{example}: {command}\n{output}"
                if "kill -9" in command or " doctor" in command:
                    continue  # cut off anywhere; what doctor finds is this machine's
                lines = {masked(line) for line in output.splitlines()}
                wrong += [f"{example}: {command}: {line}" for line in told(printed) if line not in lines]
    assert not wrong, "\n".join(wrong)
    assert ran > 12
