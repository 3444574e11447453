"""container/: the steps of the Dockerfile in a fresh folder, and what compose.yaml starts, on private services.

There is no container engine here. The steps that only root may take (apt-get, useradd) are left out; test_image.py runs those too.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import duckdb
import pytest
import yaml

from floodmark.setup.services.databases import DatabaseServer
from floodmark.setup.services.s3 import SeaweedFS
from tests.conftest import Floodmark
from tests.support.dockerfile import Health, instructions, only
from tests.support.pages import ROOT
from tests.support.pythons import python
from tests.support.scripts import script
from tests.support.web_server import serving

pytestmark = pytest.mark.long
dist: Any = script("dist")
PYTHON = python("3.13") or sys.executable


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in the place of the image's /, after all steps that need no root."""
    place = tmp_path_factory.mktemp("image")
    dist.build(place / "dist")
    (place / "bin").mkdir()
    (place / "home").mkdir()
    (place / "bin/python").symlink_to(PYTHON)
    (place / "java").touch()
    version = subprocess.check_output(
        [PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], text=True
    )
    env = {
        **os.environ,
        "PATH": f"{place}/bin:{os.environ['PATH']}",
        "HOME": str(place / "home"),
        "CC": "/bin/false",
    }
    env.pop("XDG_CACHE_HOME", None)
    for word, rest in instructions():
        if word == "ENV":
            env["PATH"] = f"{place}/opt/floodmark/bin:{env['PATH']}"
        if word != "RUN" or re.search(r"apt-get|useradd", rest):
            continue
        step = rest.replace("/opt/floodmark", f"{place}/opt/floodmark").replace("/dist", f"{place}/dist")
        step = step.replace("/usr/bin/java", f"{place}/java").replace(
            "lib/python3.13/", f"lib/python{version.strip()}/"
        )
        done = subprocess.run(["sh", "-e", "-c", step], cwd=place, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{step}\n{done.stdout}\n{done.stderr}"
    return place


def test_the_steps_leave_a_command_with_the_compiled_reader_and_the_dashboard(image: Path) -> None:
    bin = image / "opt/floodmark/bin"
    assert dist.is_compiled(bin)
    assert dist.run(bin / "python", "-c", "import uvicorn, apprise; print('both')", cwd=image) == "both\n"
    entry = json.loads(only("ENTRYPOINT"))
    assert entry == ["tini", "--", "floodmark"]
    assert "Usage: floodmark" in dist.run(bin / "floodmark", *json.loads(only("CMD")), cwd=image)


def test_the_archive_of_sparks_classes_is_there_and_its_name_survives_a_layer(image: Path) -> None:
    assert len(list((image / "home/.cache/floodmark").glob("spark-*.jsa"))) == 1
    (jars,) = image.glob("opt/floodmark/lib/python*/site-packages/pyspark/jars")
    assert jars.stat().st_mtime_ns % 10**9 == 0  # layers keep whole seconds


def test_the_health_check_believes_the_address_that_it_is_given(image: Path) -> None:
    check = json.loads(only("HEALTHCHECK").partition(" CMD ")[2])

    def code(**env: str) -> int:
        command = [image / "opt/floodmark/bin" / check[0], *check[1:]]
        return subprocess.run(command, env={**os.environ, **env}, stderr=subprocess.DEVNULL).returncode

    with serving(Health) as address:
        assert code(HEALTH_URL=f"{address}/healthz") == 0
        assert code(HEALTH_URL=f"{address}/ill") != 0
    assert code(HEALTH_URL=f"{address}/healthz") != 0
    assert code() == 0


def with_weed() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_the_services_of_the_compose_file_fit_together(
    new_server: type[DatabaseServer], floodmark: Floodmark, tmp_path: Path
) -> None:
    """Its SQL on a MySQL, its identities and its bucket on an S3 server, its configuration with their addresses."""
    container = ROOT / "container"
    services = yaml.safe_load((container / "compose.yaml").read_text())["services"]
    config = f"-s3.config={container / 's3.json'}"
    with new_server() as mysql, SeaweedFS(bucket="another", args=[config]) as s3:
        with urlopen(f"{s3.endpoint}/healthz", timeout=30) as answer:  # what its health check asks
            assert answer.status == 200
        shell, flag, line = services["bucket"]["entrypoint"]
        master = "{}:{}.{}".format("127.0.0.1", *s3._ports[4:6])
        subprocess.run(
            [shell, flag, line.replace("s3:9333", master)], env=with_weed(), check=True, timeout=120
        )
        link = mysql.connect()
        cursor = link.cursor()
        cursor.execute((container / "shop.sql").read_text())
        while cursor.nextset():
            pass
        link.commit()
        link.close()
        text = (container / "floodmark.yaml").read_text()
        text = text.replace("@mysql:3306", f"@{mysql.host}:{mysql.port}").replace(
            "http://s3:8333", s3.endpoint
        )
        (tmp_path / "floodmark.yaml").write_text(text)
        command = services["sync"]["command"].split()[:2]
        env = {name: value for name, value in services["sync"]["environment"].items() if name != "HEALTH_URL"}
        floodmark(*command, env=env).ok()
    with duckdb.connect(str(tmp_path / "shop.duckdb"), read_only=True) as warehouse:
        assert warehouse.sql(
            "SELECT (SELECT count(*) FROM customers), (SELECT count(*) FROM orders)"
        ).fetchall() == [(4, 256)]
