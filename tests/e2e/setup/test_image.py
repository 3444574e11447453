"""Every step of container/Dockerfile in a root folder of its own: apt-get, useradd and pip as written, then a sync as its user."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from floodmark.setup.services.databases import DatabaseServer
from tests.support.dockerfile import Health, Image, debootstrap, mirror, only
from tests.support.pythons import python
from tests.support.scripts import script
from tests.support.spark_cluster import can_hide
from tests.support.web_server import serving

pytestmark = pytest.mark.long
dist: Any = script("dist")
SHOP = "/srv/floodmark"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image, built."""
    source, interpreter = mirror(), python("3.13")
    if os.getuid() != 0 or not can_hide() or source is None or interpreter is None:
        pytest.skip("needs root with mount namespaces, Debian's archive and a Python 3.13")
    place = tmp_path_factory.mktemp("image")
    program = debootstrap(place / "debootstrap")
    if program is None:
        pytest.skip("debootstrap could not be had")
    dist.build(place / "dist")
    (place / "root").mkdir(mode=0o755)
    place.chmod(0o755)
    made = Image(place / "root")
    made.base(program, source, interpreter)
    made.build(place / "dist")
    yield made


def test_the_user_has_a_name_and_owns_only_what_it_needs(image: Image) -> None:
    assert image.run("id", "-un").stdout == "floodmark\n"
    assert image.run("sh", "-c", f"touch {SHOP}/x && rm {SHOP}/x && ! touch /opt/floodmark/x").returncode == 0


def test_java_the_compiled_reader_and_the_dashboard_are_there(image: Image) -> None:
    assert 'version "17.' in image.run("java", "-version").stderr
    asked = "import uvicorn, apprise; from floodmark.source.rows.decoder import compiled; print(compiled is not None)"
    assert image.run("python", "-c", asked).stdout == "True\n"
    shown = image.run(*json.loads(only("ENTRYPOINT")), *json.loads(only("CMD")))
    assert shown.returncode == 0 and "Usage: floodmark" in shown.stdout


def test_the_health_check_asks_the_address_that_it_is_given(image: Image) -> None:
    check = json.loads(only("HEALTHCHECK").partition(" CMD ")[2])

    with serving(Health) as address:
        codes = [image.run(*check, env={"HEALTH_URL": f"{address}/{path}"}).returncode for path in ("healthz", "ill")]  # fmt: skip
    assert codes[0] == 0 != codes[1]
    assert image.run(*check).returncode == 0


def test_a_sync_in_it_runs_as_its_user_on_the_archive_of_sparks_classes(
    image: Image, new_server: type[DatabaseServer]
) -> None:
    with new_server() as server:
        server.execute(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, update_at DATETIME NOT NULL, KEY (update_at))",
            "INSERT INTO shop.orders VALUES (1, '2025-06-01'), (2, '2025-06-02')",
        )
        folder = image.root / SHOP[1:]
        (folder / "floodmark.yaml").write_text(f"source: {{url: '{server.url('shop')}'}}\n")
        archives = image.root / "home/floodmark/.cache/floodmark"
        before = {path.name for path in archives.glob("spark-*.jsa")}
        done = image.run(*json.loads(only("ENTRYPOINT")), "--json", "sync", "--all")
    assert done.returncode == 0, done.stderr
    assert [table["rows_loaded"] for table in json.loads(done.stdout)["tables"]] == [2]
    assert (folder / "warehouse.duckdb").stat().st_uid == 1000
    # The archive of the build fits: none was made, and none was wanted.
    assert len(before) == 1 and before == {path.name for path in archives.glob("spark-*.jsa")}
    assert not list(archives.glob("*.wanted"))
