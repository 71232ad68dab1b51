from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.submit import package_files, packages
from tests.support.in_process import job_of


def names(package: packages.Package) -> set[str]:
    return set(zipfile.ZipFile(io.BytesIO(package.content)).namelist())


def test_processor_package_is_complete_and_deterministic() -> None:
    package = packages.processor_package()
    assert "airflow_provider_raydatallm/processor/__main__.py" in names(package)
    assert not [n for n in names(package) if n.endswith(".pyc")]
    packages.processor_package.cache_clear()
    assert packages.processor_package().name == package.name


def test_spec_package_holds_the_spec() -> None:
    job = job_of(input_path="/i", output_path="/o", prompt="ünï 'quotes' \"and\" $(that)")
    name, package = packages.spec_package(job)
    text = zipfile.ZipFile(io.BytesIO(package.content)).read(f"{name}/spec.json").decode()
    assert SliceJob.model_validate_json(text) == job


def test_code_paths_keep_package_names_and_their_code_counts(tmp_path: Path) -> None:
    for file in ("pkg/__init__.py", "pkg/m.py", "pkg/__pycache__/m.pyc", "plain/m2.py", "single.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / file).write_text("x = 1")
    code_paths = ["pkg", "plain", "single.py"]
    before = packages.user_packages([], code_paths, tmp_path)
    assert [names(p) for p in before] == [{"pkg/__init__.py", "pkg/m.py"}, {"m2.py"}, {"single.py"}]
    (tmp_path / "single.py").write_text("x = 2")
    after = packages.user_packages([], code_paths, tmp_path)
    assert packages.code_hash(after) != packages.code_hash(before)
    with pytest.raises(RayLLMInputError, match="nope"):
        packages.user_packages([], ["nope"], tmp_path)


def test_functions_own_package_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_llm_functions.py").write_text("def f(row): return row")
    monkeypatch.syspath_prepend(str(tmp_path))
    references = ["my_llm_functions:f", "my_llm_functions:g", "only_on_the_cluster:h"]
    assert [names(p) for p in packages.user_packages(references, None, None)] == [{"my_llm_functions.py"}]


def test_users_runtime_env_is_merged_and_conflicts_are_named() -> None:
    user = {"env_vars": {"A": "1"}, "py_modules": ["s3://b/x.zip"], "pip": ["y"]}
    merged = packages.merge_runtime_env(user, py_modules=["gcs://p.zip"], env_vars={"HF_TOKEN": "t"})
    assert merged == {
        "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "30", "A": "1", "HF_TOKEN": "t"},
        "py_modules": ["gcs://p.zip", "s3://b/x.zip"],
        "pip": ["y"],
    }
    stops = {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "5"}}
    assert packages.merge_runtime_env(stops, py_modules=[], env_vars={})["env_vars"] == stops["env_vars"]
    with pytest.raises(RayLLMInputError, match="HF_TOKEN"):
        packages.merge_runtime_env({"env_vars": {"HF_TOKEN": "x"}}, py_modules=[], env_vars={"HF_TOKEN": "t"})
    with pytest.raises(RayLLMInputError, match=r"\['HF_TOKEN'\] looks like a secret.*model_conn_id"):
        packages.merge_runtime_env({"env_vars": {"HF_TOKEN": "rendered"}}, py_modules=[], env_vars={})
    for local in ({"working_dir": "/here"}, {"py_modules": ["./x"]}):
        with pytest.raises(RayLLMInputError, match="code_paths"):
            packages.merge_runtime_env(local, py_modules=[], env_vars={})


def test_too_large_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_files, "MAX_PACKAGE_BYTES", 10)
    (tmp_path / "big.py").write_text("#" * 100)
    with pytest.raises(RayLLMInputError, match=r"big\.py"):
        packages.user_packages([], ["big.py"], tmp_path)
