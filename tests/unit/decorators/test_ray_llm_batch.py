"""`@task.ray_llm_batch`: DAG files parsed as Airflow parses them, functions run where the file is not."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG, task
from airflow.sdk.bases.decorator import DecoratedMappedOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raydatallm.contract.errors import SliceError
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.processor.request import row_function
from airflow_provider_raydatallm.processor.request.prompt import RequestBuilder
from airflow_provider_raydatallm.processor.slice_run import run_slice
from airflow_provider_raydatallm.submit import packages, pickled_function
from airflow_provider_raydatallm.submit.function_hash import hash_function
from tests.support.in_process import InProcess, job_of

ARGUMENTS: dict[str, Any] = {"input_path": "/in", "output_path": "/out", "model_source": "m"}

DAG_FILE = """
import dataclasses
import enum
import functools
import logging
import re
from airflow.sdk import Context, dag, task

log = logging.getLogger(__name__)
WORDS = {"one", "two", "three"}
NOISE = re.compile("[0-9]+")


class Tone(enum.Enum):
    CALM = "calm"


@dataclasses.dataclass
class Note:
    text: str

    def shown(self):
        return f"{self.text} ({Tone.CALM.value})"


@functools.cache
def clean(text):
    return NOISE.sub("", text)


def helper(text) -> Context:  # a type that the cluster does not have
    log.debug("a line")
    return Note(clean(text)).shown() + " of " + ",".join(sorted(WORDS))


@dag(schedule=None)
def the_dag():
    times = 2

    @task.ray_llm_batch(input_path="/in", output_path="/out", model_source="m", slice_key="k")
    def ask(Company, end="!"):
        # a comment
        return {"prompt": helper(Company) * times + end}

    ask()


the_dag()
"""


def parsed(path: Path, text: str) -> DAG:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    bag = DagBag(path)
    assert bag.import_errors == {}
    (found,) = bag.dags.values()
    return found  # type: ignore[return-value]


def sent(dag: DAG, task_id: str = "ask", operator: Any = None) -> tuple[SliceJob, list[packages.Package]]:
    context: Any = {"dag": dag, "dag_run": SimpleNamespace(run_type="manual"), "params": {}}
    return (operator or dag.get_task(task_id)).slice_job(context)  # type: ignore[no-any-return]


def elsewhere(job: SliceJob, packages: list[packages.Package], folder: Path, code: str) -> str:
    """What code prints in a process that has the packages and no DAG file; `function` is the function."""
    paths = []
    for package in packages:
        (folder / package.name).write_bytes(package.content)
        paths.append(str(folder / package.name))
    module = str(job.preprocess).split(":")[0]
    prelude = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        # The function goes on to the cluster's other processes from the one that loads it.
        f"import importlib, ray.cloudpickle as p\n"
        f"function = p.loads(p.dumps(importlib.import_module({module!r}).function))\n"
    )
    done = subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_airflow_finds_the_decorator_and_parsing_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(DAG_FILE)
    code = (
        "import sys, runpy; from airflow.sdk import task; assert callable(task.ray_llm_batch); "
        f"runpy.run_path({str(tmp_path / 'd.py')!r}); "
        "print([m for m in ('ray', 'torch', 'vllm', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_function_runs_where_the_dag_file_is_not_with_all_that_it_uses(tmp_path: Path) -> None:
    job, packages = sent(parsed(tmp_path / "dags" / "d.py", DAG_FILE))
    code = (
        "assert not [m for m in sys.modules if m.startswith(('unusual_prefix', 'airflow.sdk'))]\n"
        "print(function.columns, function({'Company': 'Acme 12', 'Other': 1}))"
    )
    text = "Acme  (calm) of one,three,two"
    assert elsewhere(job, packages, tmp_path, code) == f"['Company'] { ({'prompt': text * 2 + '!'}) }"


_IDENTITIES = """
import sys
from pathlib import Path
from tests.unit.decorators.test_ray_llm_batch import parsed, sent
from airflow_provider_raydatallm.contract.fingerprint import fingerprint
job, packages = sent(parsed(Path(sys.argv[1]), sys.stdin.read()))
print(job.code_hash, fingerprint(job), job.preprocess)
"""


def identity_in_another_process(path: Path, text: str, seed: int) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    done = subprocess.run(
        [sys.executable, "-c", _IDENTITIES, str(path)],
        input=text, capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def identity(path: Path, text: str) -> str:
    job, _ = sent(parsed(path, text))
    return f"{job.code_hash} {fingerprint(job)} {job.preprocess}"


def test_same_function_is_the_same_in_any_process_folder_and_layout(tmp_path: Path) -> None:
    here = identity(tmp_path / "a.py", DAG_FILE)
    assert identity(tmp_path / "a.py", DAG_FILE) == here  # parsed again
    rewritten = "# A comment.\n\n\n" + DAG_FILE
    for old, new in [
        ("# a comment", '"""A docstring."""\n\n        # another comment'),
        (
            "def helper(text) -> Context:",
            'def helper(\n    text: str\n) -> "str":\n    """What it does."""\n',
        ),
        ('slice_key="k")', 'slice_key="k", concurrency=(1, 4), retries=5,\n    )'),
        ('{"one", "two", "three"}', "{'three', 'two', 'one'}"),
        ("times = 2", "unused = times = 2"),
    ]:
        assert old in rewritten
        rewritten = rewritten.replace(old, new)
    compile(rewritten, "rewritten", "exec")
    assert identity_in_another_process(tmp_path / "other" / "b.py", rewritten, 1) == here
    assert identity_in_another_process(tmp_path / "c.py", DAG_FILE, 2) == here


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* times + end", "* times + end + '.'"), ("times = 2", "times = 3"), ('end="!"', 'end="?"'),
        ('"one", "two"', '"one", "2"'), ("[0-9]+", "[0-9]"), ('+ " of "', '+ " or "'), ("({Tone", "<{Tone"),
        ('CALM = "calm"', 'CALM = "loud"'), ('NOISE.sub("", text)', 'NOISE.sub(" ", text)'),
        ("@functools.cache\n", ""),
    ],
)  # fmt: skip
def test_changed_code_constant_closure_or_helper_is_another_function(
    tmp_path: Path, old: str, new: str
) -> None:
    assert DAG_FILE.count(old) == 1
    before = identity(tmp_path / "a.py", DAG_FILE).split()
    after = identity(tmp_path / "b.py", DAG_FILE.replace(old, new)).split()
    assert all(b != a for b, a in zip(before, after, strict=True))


def test_functions_without_source_lambdas_and_recursion_have_an_identity() -> None:
    def again(n: int) -> int:
        return 0 if n == 0 else other(n - 1)

    def other(n: int) -> int:
        return again(n)

    rows: list[Any] = [1]
    rows.append(rows)
    made: dict[str, Any] = {}
    exec("def f(row, x=1): return str(row) + str(x)", made)
    one, two = hash_function(made["f"], {}), hash_function(made["f"], {"x": 2})
    assert one.digest != two.digest
    assert hash_function(again, {}) == hash_function(again, {})
    assert (
        hash_function(lambda row: rows, {})
        == hash_function(lambda row: rows, {})
        != hash_function(lambda row: again, {})
    )


def test_identity_survives_releases_and_minor_versions_of_python(tmp_path: Path) -> None:
    """Where this digest changes, every slice that a function was used for is another configuration."""
    function = parsed(tmp_path / "d.py", DAG_FILE).get_task("ask")._function
    assert hash_function(function, {"style": ["terse", 1.5, None]}).digest[:16] == "e7f9784841175cc6"


def test_users_own_modules_go_along_and_their_code_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path / "dags"))
    for name, text in {"my_llm_words": "WORD = 'hello'", "my_llm_late": "def late(): return 'late'"}.items():
        (tmp_path / "dags").mkdir(exist_ok=True)
        (tmp_path / "dags" / f"{name}.py").write_text(text)
    text = (
        "import json\nimport numpy\nimport my_llm_words\nfrom airflow.sdk import dag, task\n\n"
        "@dag(schedule=None)\ndef d():\n"
        "    @task.ray_llm_batch(input_path='/in', output_path='/out', model_source='m', slice_key='k')\n"
        "    def ask(row):\n        from my_llm_late import late\n"
        "        return my_llm_words.WORD + late() + json.dumps([int(numpy.int64(1))])\n    ask()\n\nd()\n"
    )
    job, packages = sent(parsed(tmp_path / "dags" / "d.py", text))
    assert elsewhere(job, packages, tmp_path, "print(function({}))") == "hellolate[1]"
    assert len(packages) == 3
    (tmp_path / "dags" / "my_llm_late.py").write_text("def late(): return 'later'")
    after, _ = sent(parsed(tmp_path / "dags" / "d.py", text))
    assert after.code_hash != job.code_hash
    for name in ("my_llm_words", "my_llm_late"):
        sys.modules.pop(name, None)


LOCK = threading.Lock()


def uses_a_lock(row: dict[str, Any]) -> str:
    return str(LOCK)


def calls_it(row: dict[str, Any]) -> str:
    return uses_a_lock(row)


with DAG("others", schedule=None):

    @task
    def of_airflow() -> str:
        return ""


def calls_a_task(row: dict[str, Any]) -> str:
    return str(of_airflow())


def reads_a_variable(row: dict[str, Any]) -> str:
    from airflow.sdk import Variable

    return str(Variable.get("x"))


@pytest.mark.parametrize(
    ("function", "given", "says"),
    [
        (calls_it, {}, r"'calls_it' cannot be sent.*: calls_it -> uses_a_lock -> LOCK is a lock, which"),
        (calls_a_task, {}, r"calls_a_task -> of_airflow is a _TaskDecorator of Airflow"),
        (reads_a_variable, {}, r"reads_a_variable imports airflow\.sdk, which the cluster does not have"),
        (lambda row, x: x, {"x": LOCK}, r"argument x is a lock"),
    ],
)  # fmt: skip
def test_what_cannot_travel_is_named_with_what_uses_it(
    function: Callable[..., Any], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(RayLLMInputError, match=says):
        pickled_function.pickle_function(function, ["row"], given)  # type: ignore[arg-type]


def test_dag_with_what_cannot_travel_still_parses(tmp_path: Path) -> None:
    text = DAG_FILE.replace("times = 2", "import threading\n    times = threading.Lock()")
    dag = parsed(tmp_path / "d.py", text)
    with pytest.raises(RayLLMInputError, match="ask -> times is a lock"):
        sent(dag)


def decorated(function: Callable[..., Any], **arguments: Any) -> Any:
    return task.ray_llm_batch(**{**ARGUMENTS, **arguments})(function)


def row_only(row: dict[str, Any]) -> str:
    return ""


def styled(Company: str, style: str) -> str:
    return f"{Company}: {style}"


async def waits(row: dict[str, Any]) -> str:
    return ""


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: decorated(row_only)({"a": 1}), r"by name: row_only"),
        (lambda: decorated(row_only)(row={}), "cannot be given 'row'"),
        (lambda: decorated(row_only)(concurrency=2), r"concurrency.*row_only\.override\(concurrency"),
        (lambda: decorated(row_only, prompt="x")(), "prompt and the function 'row_only' both make"),
        (lambda: decorated(row_only, preprocess="a:b")(), "preprocess and the function 'row_only' both"),
        (lambda: decorated(lambda *rows: "", task_id="t"), r"'\*rows' has no name"),
        (lambda: decorated(lambda **row: "", task_id="t"), r"'\*\*row' has no name"),
        (lambda: decorated(lambda row, ds: "", task_id="t")(), "'ds' names a part of Airflow's context"),
        (lambda: decorated(lambda row, ds=None: "", task_id="t")(), "'ds' names a part of Airflow's context"),
        (lambda: decorated(waits), "is async"),
        (lambda: decorated(len), "takes a function"),
        (lambda: decorated(row_only).expand(row=[{}]), "row"),
        (lambda: decorated(row_only).expand(concurrency=[2]), "concurrency"),
        (lambda: decorated(row_only, poll_interval=0)(), "poll_interval"),
    ],
)
def test_what_cannot_work_is_refused_when_the_dag_is_parsed(make: Callable[[], Any], says: str) -> None:
    with DAG("d", schedule=None), pytest.raises((TypeError, ValueError), match=says):
        make()


def test_calls_give_parameters_and_templated_arguments(tmp_path: Path) -> None:
    with DAG("d", schedule=None, default_args={"style": "no", "Company": "no", "ray_conn_id": "mine"}) as dag:
        ask = decorated(styled)
        ask(style="{{ ds }}", slice_key="one", max_rows="{{ 1 + 1 }}")
        ask.override(task_id="other", concurrency=3, slice_key="two")(style="terse")
        ask.override(task_id="mapped").partial(style="kind", max_rows=5).expand(slice_key=["a", "b"])
        ask.override(task_id="styles", slice_key="k").expand(style=["a", "b"])

    one: Any = dag.get_task("styled")
    assert (one.slice_key, one.max_rows, one.op_kwargs) == ("one", "{{ 1 + 1 }}", {"style": "{{ ds }}"})
    one.render_template_fields({"ds": "2026-01-31"})
    assert (one.op_kwargs, one.max_rows, one.ray_conn_id) == ({"style": "2026-01-31"}, "2", "mine")
    job, packages = sent(dag, operator=one)
    said = elsewhere(
        job, packages, tmp_path, "print(function.columns, function({'Company': 'A', 'style': 0}))"
    )
    assert said == "['Company'] A: 2026-01-31"

    other: Any = dag.get_task("other")
    assert (other.slice_key, other.concurrency) == ("two", 3)
    assert fingerprint(sent(dag, operator=other)[0]) != fingerprint(job)

    serialized = json.dumps(DagSerialization.to_dict(dag))
    assert '"python_callable_name": "styled"' in serialized

    for name, given, key, style in (("mapped", "slice_key", "b", "kind"), ("styles", "style", "k", "b")):
        mapped = dag.get_task(name)
        assert isinstance(mapped, DecoratedMappedOperator)
        made: Any = mapped.unmap({"op_kwargs": {given: "b"}})
        assert (made.slice_key, made.op_kwargs) == (key, {"style": style})


def test_return_annotation_does_not_split_the_report() -> None:
    def ask(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": ""}

    with DAG("d", schedule=None):
        assert decorated(ask)().operator.multiple_outputs is False
        assert decorated(ask, multiple_outputs=True)().operator.multiple_outputs is True
        assert task.ray_llm_batch(**ARGUMENTS)(ask).function({}) == {"prompt": ""}


def shipped(function: Callable[..., Any], named: list[str], folder: Path) -> str:
    made = pickled_function.pickle_function(function, named, {})  # type: ignore[arg-type]
    zipfile.ZipFile(io.BytesIO(made.package.content)).extractall(folder)
    return made.reference


def test_only_the_named_columns_enter_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    reference = shipped(lambda name, size: f"{name} of {size}", ["name", "size"], tmp_path)
    function = row_function.load_row_function(reference.split(":")[0])
    columns = ["name", "heavy", "size", "kind"]
    builder = RequestBuilder(columns, prompt=None, preprocess=function, system_prompt="A {kind}")
    assert builder.columns == ["name", "size", "kind"]
    made = builder.build({"name": "a", "size": 2, "kind": "b"})
    assert [m["content"] for m in made["messages"]] == ["A b", "a of 2"]
    with pytest.raises(SliceError, match=r"'size', which the input does not have.*'row' gets the whole row"):
        RequestBuilder(["name"], prompt=None, preprocess=function)
    whole = row_function.load_row_function(
        shipped(lambda row, name: "", ["row", "name"], tmp_path).split(":")[0]
    )
    assert RequestBuilder(columns, prompt=None, preprocess=whole).columns == columns


def test_slice_is_answered_by_a_shipped_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    pq.write_table(pa.table({"name": ["a", "b"], "size": [1, 2]}), tmp_path / "in.parquet")
    reference = shipped(lambda name, row: f"{name}{row['size']}", ["name", "row"], tmp_path)
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", preprocess=reference)
    run_slice(job, lambda progress: None, InProcess())
    table = pq.read_table(job.slice_path, partitioning=None)
    assert table.column("answer").to_pylist() == ["a1", "b2"]


def test_other_python_is_told_before_anything_is_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    reference = shipped(lambda name: name, ["name"], tmp_path)
    about = tmp_path / reference.split(":")[0] / "function.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "python": "3.9"}))
    pq.write_table(pa.table({"name": ["a"]}), tmp_path / "in.parquet")
    job = job_of(input_path=f"{tmp_path}/in.parquet", output_path=f"{tmp_path}/out", preprocess=reference)
    cluster = InProcess()
    here = row_function.PYTHON
    said = rf"^the task's function was compiled by Python 3\.9.*Python {here}.*package\.module:"
    with pytest.raises(SliceError, match=said) as e:
        run_slice(job, lambda progress: None, cluster)
    assert (e.value.kind, cluster.answered) == ("input", 0)
    assert not (tmp_path / "out").exists()

    package = pickled_function.pickle_function(lambda name: name, ["name"], {}).package  # type: ignore[arg-type]
    for same in (here, None):
        packages.check_python([package, packages.processor_package()], same)
    with pytest.raises(RayLLMInputError, match=rf"compiled by Python {here}.*runs Python 3\.9"):
        packages.check_python([package], "3.9")


def test_module_that_the_cluster_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_llm_gone.py").write_text("def word(): return 1")
    import my_llm_gone  # type: ignore[import-not-found]

    reference = shipped(lambda row: my_llm_gone.word(), ["row"], tmp_path)
    monkeypatch.setitem(sys.modules, "my_llm_gone", None)
    with pytest.raises(SliceError, match=r"cannot be loaded on the cluster.*my_llm_gone.*code_paths"):
        row_function.load_row_function(reference.split(":")[0])
