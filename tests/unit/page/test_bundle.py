"""The built page: it is that of the source, goes with the package, and costs no process anything."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import sys

import pytest

from airflow_provider_raydatallm.contract.result import report
from airflow_provider_raydatallm.page import answers
from tests.support.paths import ROOT

UI, WWW = ROOT / "ui", ROOT / "airflow_provider_raydatallm" / "page" / "www"
BUNDLE = WWW / "ray_llm.js"


def test_bundle_is_built_of_the_source_as_it_is() -> None:
    files = [UI / name for name in ("package-lock.json", "package.json", "vite.config.ts")]
    files += [path for path in (UI / "src").rglob("*") if path.is_file()]
    source = hashlib.sha256()
    for path in sorted(str(file.relative_to(UI)) for file in files):
        source.update(f"{path}\n".encode())
        source.update((UI / path).read_bytes())
    assert (WWW / "source.sha256").read_text().strip() == source.hexdigest(), "run `npm run build` in ui/"


def test_bundle_is_small_and_loads_nothing_from_elsewhere() -> None:
    text = BUNDLE.read_text(encoding="utf-8")
    assert len(gzip.compress(text.encode())) < 600_000
    hosts = set(re.findall(r"https?://([\w.-]+)", text))
    # Names of XML, and links in messages for developers.
    assert hosts <= {"www.w3.org", "localhost", "echarts.apache.org", "github.com", "react.dev"}, hosts
    assert "AirflowPlugin" in text[:2000]


def test_page_knows_the_fields_that_the_api_answers() -> None:
    source = (UI / "src" / "api.ts").read_text(encoding="utf-8")
    for name in (
        "SliceLine", "SlicesPage", "RunWithoutSlice", "DateWithoutRun", "DatesWithoutRun", "TaskLine",
        "TasksPage", "Try", "SliceRun", "Version", "Progress", "Stored", "Sample", "Settings", "History",
        "WorkerShare",
    ):  # fmt: skip
        body = re.search(rf"export interface {name} {{\n(.*?)\n}}", source, re.DOTALL)
        assert body, name
        known = re.findall(r"^  (\w+)\??:", body[1], re.MULTILINE)
        model = getattr(answers if hasattr(answers, name) else report, name)
        assert set(known) == set(model.model_fields), name


@pytest.mark.slow
def test_every_airflow_process_loads_the_plugin_for_nothing() -> None:
    """It takes less than 100 ms, and neither FastAPI nor the database's models."""
    code = (
        "import sys, time, airflow.plugins_manager, airflow.configuration\n"
        "before = set(sys.modules); began = time.perf_counter()\n"
        "import airflow_provider_raydatallm.plugins.page\n"
        "import json; print(json.dumps([time.perf_counter() - began, sorted(set(sys.modules) - before)]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, modules = json.loads(done.stdout.splitlines()[-1])
    assert seconds < 0.1
    assert [m for m in modules if m.split(".")[0] in ("fastapi", "sqlalchemy", "pydantic", "pyarrow")] == []
    assert [m for m in modules if m.startswith("airflow_provider") and ".page" in m] == [
        "airflow_provider_raydatallm.links.page_address", "airflow_provider_raydatallm.plugins.page",
    ]  # fmt: skip


def test_bundle_is_no_ignored_file() -> None:
    """The wheel has what git has of the package's folder."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    command = ["git", "check-ignore", *(str(path) for path in WWW.iterdir())]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout == ""
    assert {path.name for path in WWW.iterdir()} == {
        "ray_llm.js", "source.sha256", "icon.svg", "icon_dark.svg",
    }  # fmt: skip
