"""docs/examples for managed engines: what can be checked without one."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from floodmark.config.load import load

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
SECRETS = {"MYSQL_PASSWORD": "one", "REDSHIFT_PASSWORD": "two", "POD_NAME": "driver", "POD_IP": "10.0.0.7"}


def manifests(name: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / name).read_text())}


@pytest.mark.parametrize("name", ["kubernetes-cronjob.yaml", "kubernetes-spark.yaml"])
def test_a_manifest_s_configuration_is_valid_with_the_environment_of_its_pod(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = manifests(name)
    pod = found["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = {
        *manifests("kubernetes-cronjob.yaml")["Secret"]["stringData"],
        *(e["name"] for e in container.get("env", [])),
    }
    for variable in SECRETS:
        monkeypatch.delenv(variable, raising=False)
    for variable in given:
        monkeypatch.setenv(variable, SECRETS[variable])
    file = tmp_path / "floodmark.yaml"
    file.write_text(found["ConfigMap"]["data"]["floodmark.yaml"])
    file.chmod(0o600)
    config = load(file)
    assert config.warehouse.kind == "redshift" and config.source.password == "one"
    assert container["command"][:3] == ["floodmark", "--config", "/etc/floodmark/floodmark.yaml"]
    assert pod["volumes"][0]["configMap"]["name"] == found["ConfigMap"]["metadata"]["name"]
    if name == "kubernetes-spark.yaml":
        assert config.spark.conf["spark.driver.host"] == "10.0.0.7"
        assert config.spark.conf["spark.kubernetes.container.image"] == container["image"]
        assert found["RoleBinding"]["subjects"][0]["name"] == pod["serviceAccountName"]


def test_no_image_installs_a_second_spark() -> None:
    for file in EXAMPLES.glob("*.Dockerfile"):
        text = file.read_text()
        assert "pip install --no-cache-dir floodmark==" in text and "floodmark[spark]" not in text
        assert text.rstrip().splitlines()[-1].startswith(("USER hadoop", "ENTRYPOINT")) and "USER" in text


def test_the_glue_job_is_python_and_imports_what_floodmark_has() -> None:
    tree = ast.parse((EXAMPLES / "glue_job.py").read_text())
    ours = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("floodmark")
    ]
    assert [(node.module, [name.name for name in node.names]) for node in ours] == [
        ("floodmark.cli.main", ["main"])
    ]
