"""`@task.ray_llm_batch`: its calls, and the identity of the function that it sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.bases.decorator import DecoratedMappedOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_raydatallm.contract.fingerprint import fingerprint
from airflow_provider_raydatallm.contract.spec.slice_job import SliceJob
from airflow_provider_raydatallm.exceptions import RayLLMInputError
from airflow_provider_raydatallm.submit import packages, pickled_function
from airflow_provider_raydatallm.submit.function_hash import hash_function
from tests.support.dag_files import identity, parse_dag, sent_by

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


def printed(code: str, *arguments: str, **options: Any) -> str:
    """Returns what code prints in another process."""
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, **options)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def printed_on_cluster(job: SliceJob, packages: list[packages.Package], folder: Path, code: str) -> str:
    """Returns what code prints where the packages are and the DAG file is not; `function` is the task's."""
    paths = []
    for package in packages:
        (folder / package.name).write_bytes(package.content)
        paths.append(str(folder / package.name))
    module = str(job.preprocess).split(":")[0]
    prelude = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        # The cluster's other processes get the function from the process that loads it.
        f"import importlib, ray.cloudpickle as p\n"
        f"function = p.loads(p.dumps(importlib.import_module({module!r}).function))\n"
    )
    return printed(prelude + code, cwd=folder)


@pytest.mark.slow
def test_airflow_finds_the_decorator_and_parsing_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "d.py").write_text(DAG_FILE)
    code = (
        "import sys, runpy; from airflow.sdk import task; assert callable(task.ray_llm_batch); "
        f"runpy.run_path({str(tmp_path / 'd.py')!r}); "
        "print([m for m in ('ray', 'torch', 'vllm', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    assert printed(code).splitlines()[-1] == "[]"


@pytest.mark.slow
def test_function_runs_without_its_dag_file(tmp_path: Path) -> None:
    job, packages = sent_by(parse_dag(tmp_path / "dags" / "d.py", DAG_FILE))
    code = (
        "assert not [m for m in sys.modules if m.startswith(('unusual_prefix', 'airflow.sdk'))]\n"
        "print(function.columns, function({'Company': 'Acme 12', 'Other': 1}))"
    )
    request = {"prompt": "Acme  (calm) of one,three,two" * 2 + "!"}
    assert printed_on_cluster(job, packages, tmp_path, code) == f"['Company'] {request}"


def identity_in_another_process(path: Path, text: str, seed: int) -> str:
    code = (
        "import sys; from pathlib import Path; from tests.support.dag_files import identity\n"
        "print(identity(Path(sys.argv[1]), sys.stdin.read()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    return printed(code, str(path), input=text, env=environment).splitlines()[-1]


@pytest.mark.slow
def test_identity_is_the_same_in_any_process_folder_and_layout(tmp_path: Path) -> None:
    original = identity(tmp_path / "a.py", DAG_FILE)
    assert identity(tmp_path / "a.py", DAG_FILE) == original  # parsed again
    rewritten = "# A comment.\n\n\n" + DAG_FILE
    for old, new in [
        ("# a comment", '"""A docstring."""\n\n        # another comment'),
        ("def helper(text) -> Context:", 'def helper(\n    text: str\n) -> "str":\n    """Docs."""\n'),
        ('slice_key="k")', 'slice_key="k", engine={"workers": (1, 4)}, retries=5,\n    )'),
        ('{"one", "two", "three"}', "{'three', 'two', 'one'}"),
        ("times = 2", "unused = times = 2"),
    ]:
        assert old in rewritten
        rewritten = rewritten.replace(old, new)
    assert identity_in_another_process(tmp_path / "other" / "b.py", rewritten, 1) == original
    assert identity_in_another_process(tmp_path / "c.py", DAG_FILE, 2) == original


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("* times + end", "* times + end + '.'"), ("times = 2", "times = 3"), ('end="!"', 'end="?"'),
        ('"one", "two"', '"one", "2"'), ("[0-9]+", "[0-9]"), ('+ " of "', '+ " or "'), ("({Tone", "<{Tone"),
        ('CALM = "calm"', 'CALM = "loud"'), ('NOISE.sub("", text)', 'NOISE.sub(" ", text)'),
        ("@functools.cache\n", ""),
    ],
)  # fmt: skip
def test_changed_code_changes_the_identity(tmp_path: Path, old: str, new: str) -> None:
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
    names: dict[str, Any] = {}
    exec("def f(row, x=1): return str(row) + str(x)", names)
    assert hash_function(names["f"], {}).digest != hash_function(names["f"], {"x": 2}).digest
    assert hash_function(again, {}) == hash_function(again, {})
    assert (
        hash_function(lambda row: rows, {})
        == hash_function(lambda row: rows, {})
        != hash_function(lambda row: again, {})
    )


def test_identity_survives_releases_and_minor_versions_of_python(tmp_path: Path) -> None:
    """A change of this digest recomputes every slice that was answered with a function."""
    function = parse_dag(tmp_path / "d.py", DAG_FILE).get_task("ask")._function
    assert hash_function(function, {"style": ["terse", 1.5, None]}).digest[:16] == "e7f9784841175cc6"


@pytest.mark.slow
def test_users_modules_are_sent_and_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dags = tmp_path / "dags"
    dags.mkdir()
    monkeypatch.syspath_prepend(str(dags))
    (dags / "my_llm_words.py").write_text("WORD = 'hello'")
    (dags / "my_llm_late.py").write_text("def late(): return 'late'")
    text = (
        "import json\nimport numpy\nimport my_llm_words\nfrom airflow.sdk import dag, task\n\n"
        "@dag(schedule=None)\ndef d():\n"
        "    @task.ray_llm_batch(input_path='/in', output_path='/out', model_source='m', slice_key='k')\n"
        "    def ask(row):\n        from my_llm_late import late\n"
        "        return my_llm_words.WORD + late() + json.dumps([int(numpy.int64(1))])\n    ask()\n\nd()\n"
    )
    job, packages = sent_by(parse_dag(dags / "d.py", text))
    assert printed_on_cluster(job, packages, tmp_path, "print(function({}))") == "hellolate[1]"
    assert len(packages) == 3
    (dags / "my_llm_late.py").write_text("def late(): return 'later'")
    after, _ = sent_by(parse_dag(dags / "d.py", text))
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
def test_unpicklable_value_is_named_with_its_users(
    function: Callable[..., Any], given: dict[str, Any], says: str
) -> None:
    with pytest.raises(RayLLMInputError, match=says):
        pickled_function.pickle_function(function, ["row"], given)  # type: ignore[arg-type]


def test_dag_with_an_unpicklable_function_still_parses(tmp_path: Path) -> None:
    text = DAG_FILE.replace("times = 2", "import threading\n    times = threading.Lock()")
    dag = parse_dag(tmp_path / "d.py", text)
    with pytest.raises(RayLLMInputError, match="ask -> times is a lock"):
        sent_by(dag)


def decorated(function: Callable[..., Any], **arguments: Any) -> Any:
    return task.ray_llm_batch(**{**ARGUMENTS, **arguments})(function)


def row_only(row: dict[str, Any]) -> str:
    return ""


def styled(Company: str, style: str) -> str:
    return f"{Company}: {style}"


async def waits(row: dict[str, Any]) -> str:
    return ""


@pytest.mark.parametrize(("make", "says"), [
    (lambda: decorated(row_only)({"a": 1}), r"by name: row_only"),
    (lambda: decorated(row_only)(row={}), "does not accept 'row'"),
    (lambda: decorated(row_only)(deferrable=True), r"deferrable.*row_only\.override\(deferrable"),
    (lambda: decorated(row_only, prompt="x")(), "prompt and the function 'row_only' both build"),
    (lambda: decorated(row_only, preprocess="a:b")(), "preprocess and the function 'row_only' both"),
    (lambda: decorated(lambda *rows: "", task_id="t"), r"'\*rows' cannot be passed by name"),
    (lambda: decorated(lambda **row: "", task_id="t"), r"'\*\*row' cannot be passed by name"),
    (lambda: decorated(lambda row, ds: "", task_id="t")(), "'ds' is a key of Airflow's context"),
    (lambda: decorated(lambda row, ds=None: "", task_id="t")(), "'ds' is a key of Airflow's context"),
    (lambda: decorated(waits), "is async"), (lambda: decorated(len), "takes a function"),
    (lambda: decorated(row_only).expand(row=[{}]), "row"),
    (lambda: decorated(row_only).expand(deferrable=[True]), "deferrable"),
    (lambda: decorated(row_only, poll_interval=0)(), "poll_interval"),
])  # fmt: skip
def test_invalid_call_fails_when_the_dag_is_parsed(make: Callable[[], Any], says: str) -> None:
    with DAG("d", schedule=None), pytest.raises((TypeError, ValueError), match=says):
        make()


@pytest.mark.slow
def test_calls_pass_parameters_and_templated_arguments(tmp_path: Path) -> None:
    with DAG("d", schedule=None, default_args={"style": "no", "Company": "no", "ray_conn_id": "mine"}) as dag:
        ask = decorated(styled)
        ask(style="{{ ds }}", slice_key="one", source={"max_rows": "{{ 1 + 1 }}"})
        ask.override(task_id="other", quality={"max_attempts": 3}, slice_key="two")(style="terse")
        ask.override(task_id="mapped").partial(style="kind", source={"max_rows": 5}).expand(
            slice_key=["a", "b"]
        )
        ask.override(task_id="styles", slice_key="k").expand(style=["a", "b"])

    one: Any = dag.get_task("styled")
    assert (one.slice_key, one.op_kwargs) == ("one", {"style": "{{ ds }}"})
    one.render_template_fields({"ds": "2026-01-31"})
    assert (one.op_kwargs, one.source, one.ray_conn_id) == (
        {"style": "2026-01-31"},
        {"max_rows": "2"},
        "mine",
    )
    job, packages = sent_by(dag, "styled")
    code = "print(function.columns, function({'Company': 'A', 'style': 0}))"
    assert printed_on_cluster(job, packages, tmp_path, code) == "['Company'] A: 2026-01-31"

    other: Any = dag.get_task("other")
    assert (other.slice_key, other.quality) == ("two", {"max_attempts": 3})
    assert fingerprint(sent_by(dag, "other")[0]) != fingerprint(job)

    assert '"python_callable_name": "styled"' in json.dumps(DagSerialization.to_dict(dag))

    for name, given, key, style in (("mapped", "slice_key", "b", "kind"), ("styles", "style", "k", "b")):
        mapped = dag.get_task(name)
        assert isinstance(mapped, DecoratedMappedOperator)
        operator: Any = mapped.unmap({"op_kwargs": {given: "b"}})
        assert (operator.slice_key, operator.op_kwargs) == (key, {"style": style})


def test_return_annotation_does_not_split_the_report() -> None:
    def ask(row: dict[str, Any]) -> dict[str, Any]:
        return {"prompt": ""}

    with DAG("d", schedule=None):
        assert decorated(ask)().operator.multiple_outputs is False
        assert decorated(ask, multiple_outputs=True)().operator.multiple_outputs is True
        assert task.ray_llm_batch(**ARGUMENTS)(ask).function({}) == {"prompt": ""}


def test_function_is_what_was_parsed_when_its_file_changes_while_the_task_holds_its_submission(
    tmp_path: Path,
) -> None:
    dag = parse_dag(tmp_path / "a.py", DAG_FILE)
    parsed, _ = sent_by(dag)
    (tmp_path / "a.py").write_text(DAG_FILE.replace('" of "', '" from "'))
    renewed, _ = sent_by(dag)
    assert (renewed.preprocess, renewed.code_hash) == (parsed.preprocess, parsed.code_hash)
