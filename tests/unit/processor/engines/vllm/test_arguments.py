from __future__ import annotations

import ast
from pathlib import Path

import pytest

from airflow_provider_raydatallm.contract.result.errors import SliceError
from airflow_provider_raydatallm.processor.engines.vllm.arguments import (
    check_arguments,
    check_speculation,
    complete_fields,
    cpu_dtype,
    read_max_num_seqs,
)


def test_unknown_engine_argument_names_the_nearest() -> None:
    with pytest.raises(SliceError, match="Did you mean 'max_model_len'"):
        check_arguments({"max_model_length": 1}, {})
    with pytest.raises(SliceError, match="Did you mean 'temperature'"):
        check_arguments({}, {"temprature": 1})
    with pytest.raises(SliceError, match="Use model_source"):
        check_arguments({"model": "x"}, {})
    check_arguments({"max_model_len": 1, "enforce_eager": True}, {"max_tokens": 1, "structured_outputs": {}})


@pytest.mark.parametrize(("source", "fields"), [
    ("class A:\n a: int = 1\n b: list = f()\n _c: int = 2", {"a", "b"}),
    ("class A(msgspec.Struct, omit_defaults=True):\n a: int", {"a"}),
    ("class A(B):\n a: int", set()), ("class A(mixins.Batching, msgspec.Struct):\n a: int", set()),
])  # fmt: skip
def test_nothing_is_refused_where_a_class_inherits_unread_fields(source: str, fields: set[str]) -> None:
    [cls] = ast.parse(source).body
    assert isinstance(cls, ast.ClassDef)
    assert complete_fields(cls) == fields
    assert complete_fields(cls, None) == set()


@pytest.mark.parametrize(("cpuinfo", "dtype"), [
    ("processor\t: 0\nflags\t\t: fpu avx2 avx512f avx512_bf16 amx_tile\n", "bfloat16"),
    ("flags\t\t: fpu amx_bf16\n", "bfloat16"), ("Features\t: fp asimd bf16 i8mm\n", "bfloat16"),
    ("flags\t\t: fpu avx2 avx512f avx512_vnni\n", "float32"),
    ("model name\t: bf16\nflags\t\t: fpu avx2\n", "float32"), (None, "float32"),
])  # fmt: skip
def test_bfloat16_is_the_default_on_cpus_that_support_it(
    cpuinfo: str | None, dtype: str, tmp_path: Path
) -> None:
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert cpu_dtype(tmp_path / "cpuinfo") == dtype


@pytest.mark.parametrize("value", [0, -5, "many", "0", 2.5, True, [1]])
def test_rows_at_once_that_no_engine_can_run_are_refused_by_name_and_value(value: object) -> None:
    with pytest.raises(SliceError, match=r"engine.kwargs\['max_num_seqs'\] is .*"):
        read_max_num_seqs({"max_num_seqs": value})
    assert [read_max_num_seqs(kwargs) for kwargs in ({}, {"max_num_seqs": "64"})] == [None, 64]


def test_speculation_by_suffixes_needs_its_package() -> None:
    check_speculation({"speculative_config": {"method": "ngram"}})
    with pytest.raises(SliceError, match="needs the package arctic-inference"):
        check_speculation({"speculative_config": {"method": "suffix"}})
