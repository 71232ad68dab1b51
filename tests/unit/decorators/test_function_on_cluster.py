"""A task's function as the cluster loads it from its package."""

from __future__ import annotations

import inspect
import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.request import row_code, row_function
from airflow_provider_raydatallm.processor.request.requests import RequestBuilder
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.submit import packages, pickled_function
from tests.support.in_process import InProcess, job_of

Install = Callable[[Callable[..., Any]], str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a function's package where imports find it; returns its module. Its parameters are columns."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(function: Callable[..., Any]) -> str:
        named = list(inspect.signature(function).parameters)
        pickled = pickled_function.pickle_function(function, named, {})  # type: ignore[arg-type]
        zipfile.ZipFile(io.BytesIO(pickled.package.content)).extractall(tmp_path)
        return pickled.reference.split(":")[0]

    return install


def job_on(folder: Path, module: str, **columns: Any) -> SliceJob:
    pq.write_table(pa.table(columns), folder / "in.parquet")
    return job_of(
        input_path=f"{folder}/in.parquet", output_path=f"{folder}/out", preprocess=f"{module}:function"
    )


def test_only_the_named_columns_enter_the_pipeline(install: Install) -> None:
    function = row_function.load_row_function(install(lambda name, size: f"{name} of {size}"))
    columns = ["name", "heavy", "size", "kind"]
    builder = RequestBuilder(columns, prompt=None, preprocess=function, system_prompt="A {kind}")
    assert builder.columns == ["name", "size", "kind"]
    request = builder.build({"name": "a", "size": 2, "kind": "b"})
    assert [m["content"] for m in request["messages"]] == ["A b", "a of 2"]
    with pytest.raises(SliceError, match=r"'size', which the input does not have.*'row' gets the whole row"):
        RequestBuilder(["name"], prompt=None, preprocess=function)
    whole = row_function.load_row_function(install(lambda row, name: ""))
    assert RequestBuilder(columns, prompt=None, preprocess=whole).columns == columns


def test_slice_is_answered_by_a_shipped_function(tmp_path: Path, install: Install) -> None:
    job = job_on(tmp_path, install(lambda name, row: f"{name}{row['size']}"), name=["a", "b"], size=[1, 2])
    run_slice(job, lambda progress: None, InProcess())
    table = pq.read_table(job.slice_path, partitioning=None)
    assert table.column("answer").to_pylist() == ["a1", "b2"]


def test_other_python_version_fails_before_an_engine_starts(tmp_path: Path, install: Install) -> None:
    module = install(lambda name: name)
    about = tmp_path / module / "function.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "python": "3.9"}))
    cluster, python = InProcess(), row_function.PYTHON
    message = rf"^the task's function was compiled by Python 3\.9.*Python {python}.*package\.module:"
    with pytest.raises(SliceError, match=message) as e:
        run_slice(job_on(tmp_path, module, name=["a"]), lambda progress: None, cluster)
    assert (e.value.kind, cluster.answered) == ("input", 0)
    assert not (tmp_path / "out").exists()

    sourceless = eval("lambda name: name")
    package = pickled_function.pickle_function(sourceless, ["name"], {}).package
    for same in (python, None):
        packages.check_python([package, packages.processor_package()], same)
    with pytest.raises(RayLLMInputError, match=rf"compiled by Python {python}.*runs Python 3\.9"):
        packages.check_python([package], "3.9")


class Names:
    def __init__(self, name: str) -> None:
        self.__name = name

    def __repr__(self) -> str:
        return f"{super().__repr__()[:1]}{self.__name}"


def test_another_python_compiles_the_function_from_its_source(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = "?"

    def ask(name: str) -> str:
        text = """
  who"""
        return f"{text} {Names(name)}{(lambda: mark)()}"

    module = install(ask)
    for of_cluster in (row_code, row_function):
        monkeypatch.setattr(of_cluster, "PYTHON", "3.9")
    function = row_function.load_row_function(module)
    assert function({"name": "ann"}) == "\n  who <ann?"
    assert function._function.__code__.co_firstlineno == ask.__code__.co_firstlineno

    with pytest.raises(SliceError, match="uses code that has no source"):
        row_function.load_row_function(install(eval("lambda name: name")))


HARD = """
def nested(depth):
	class Asks:
		by_lambda = lambda self, name: self.__mark + name
		def __init__(self): self.__mark = "é"
		def function(self):
			def ask(name): return Asks().by_lambda(name) + self.__mark * depth
			return ask
	return Asks().function()
if True:
	def count(n): return 0 if n == 0 else 1 + count(n - 1)
	def recursive(name): return f"{name}{count(2)}"
"""


def test_private_names_and_recursion_are_the_same_when_compiled_again_and_an_edited_file_is_refused(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_llm_hard.py").write_text(HARD, encoding="utf-8")
    import my_llm_hard  # type: ignore[import-not-found]

    nested, recursive = my_llm_hard.nested(2), my_llm_hard.recursive
    modules = [install(nested), install(recursive)]
    # The code that runs is not what the file says by now, although its instructions are the same.
    (tmp_path / "my_llm_hard.py").write_text(HARD.replace("count(2)", "count(3)"), encoding="utf-8")
    edited = install(recursive)
    for of_cluster in (row_code, row_function):
        monkeypatch.setattr(of_cluster, "PYTHON", "3.9")
    answers = [row_function.load_row_function(module)({"name": "ann"}) for module in modules]
    assert answers == [nested("ann"), recursive("ann")] == ["éannéé", "ann2"]
    with pytest.raises(SliceError, match="uses code that has no source"):
        row_function.load_row_function(edited)


def test_module_that_the_cluster_lacks_is_named(
    tmp_path: Path, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_llm_gone.py").write_text("def word(): return 1")
    import my_llm_gone  # type: ignore[import-not-found]

    module = install(lambda row: my_llm_gone.word())
    monkeypatch.setitem(sys.modules, "my_llm_gone", None)
    with pytest.raises(SliceError, match=r"cannot be loaded on the cluster.*my_llm_gone.*code_paths"):
        row_function.load_row_function(module)
