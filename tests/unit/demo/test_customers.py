"""What the demo's dataset promises: the same bytes each time, true CSV, known industries, names new to the
model."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from demo import customers, examples, names

DATES = ["2026-01-01", "2026-01-02", "2026-01-03"]
ROWS = 2_000


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return customers.write_customers(tmp_path_factory.mktemp("demo") / "customers", DATES, ROWS)


def test_folders_are_hive_partitions_and_hold_nothing_else(dataset: list[Path]) -> None:
    root = dataset[0].parent.parent
    assert [str(path.relative_to(root)) for path in dataset] == [f"ds={date}/customers.csv" for date in DATES]
    assert sorted(path for path in root.rglob("*") if path.is_file()) == sorted(dataset)


def test_columns_are_those_of_the_reference_workload(dataset: list[Path]) -> None:
    for path in dataset:
        with path.open(newline="", encoding="utf-8") as file:
            assert tuple(next(csv.reader(file))) == customers.COLUMNS
    assert len(customers.COLUMNS) == 12


def test_rows_are_split_evenly_and_the_index_runs_on(dataset: list[Path]) -> None:
    rows = [rows_of(path) for path in dataset]
    assert [len(part) for part in rows] == [667, 667, 666]
    assert [int(row["Index"]) for part in rows for row in part] == list(range(1, ROWS + 1))
    assert all(
        row["Subscription Date"] == date for date, part in zip(DATES, rows, strict=True) for row in part
    )
    assert all(value for part in rows for row in part for value in row.values())


def test_same_parameters_give_same_bytes_and_another_seed_does_not(
    dataset: list[Path], tmp_path: Path
) -> None:
    again = customers.write_customers(tmp_path / "again", DATES, ROWS)
    other = customers.write_customers(tmp_path / "other", DATES, ROWS, seed=8)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in dataset]
    assert all(a.read_bytes() != b.read_bytes() for a, b in zip(again, other, strict=True))


def test_names_with_commas_and_quotes_survive_csv(dataset: list[Path]) -> None:
    company_names = [row["Company"] for path in dataset for row in rows_of(path)]
    lines = [line for path in dataset for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == ROWS + len(DATES)
    assert sum("," in name for name in company_names) > ROWS // 20
    for name in company_names:
        assert customers.industry_of(name) is not None
    for mark in (",", '"'):
        name = next(name for name in company_names if mark in name)
        assert any('"' + name.replace('"', '""') + '"' in line for line in lines)


def test_every_label_appears_on_every_date(dataset: list[Path]) -> None:
    for path in dataset:
        industries = [customers.industry_of(row["Company"]) for row in rows_of(path)]
        assert set(industries) == set(customers.LABELS)
        assert min(map(industries.count, customers.LABELS)) > len(industries) / len(customers.LABELS) / 2


@pytest.mark.parametrize("split", ["train", "demo"])
def test_industry_of_reads_the_truth_back_from_a_name(split: names.Split) -> None:
    for company in names.companies(random.Random(1), 20_000, split=split):
        assert customers.industry_of(company.name) == company.industry, company


def test_no_two_industries_share_a_pattern() -> None:
    """With the nouns blanked out, a name has one industry: the table of `industry_of` lost nothing."""
    industries: dict[str, set[str]] = {}
    for pattern in names._PATTERNS:
        industries.setdefault(re.sub(r"\{[npqr]\}", "{}", pattern.text), set()).add(pattern.industry)
    assert [shape for shape, known in industries.items() if len(known) > 1] == []


def test_industry_of_an_unknown_name_is_none() -> None:
    assert [customers.industry_of(name) for name in ("", "Acme Rockets", "Law Firm")] == [None, None, None]


@pytest.mark.slow
def test_no_demo_name_can_be_trained_on() -> None:
    """By construction: nouns belong to one split, none is a pattern's word, and a name's nouns are of one
    split."""
    train, demo = names.proper_nouns("train"), names.proper_nouns("demo")
    assert not train & demo
    assert not (train | demo) & names._PATTERN_WORDS
    pairs: list[tuple[names.Split, frozenset[str]]] = [("train", demo), ("demo", train)]
    for split, foreign in pairs:
        for company in names.companies(random.Random(2), 20_000, split=split):
            words = set(names._WORD.findall(company.name))
            assert not words & foreign, company
            assert words & names.proper_nouns(split), company


def test_training_examples_hold_no_demo_noun_in_a_company_name() -> None:
    free = examples.invented_nouns(random.Random(3))
    assert len(free) > 300
    assert not set(free) & names.proper_nouns("demo")
    trained = [
        company.name for company in names.companies(random.Random(4), 5_000, split="train", more_nouns=free)
    ]
    words = {word for name in trained for word in names._WORD.findall(name)}
    assert not words & names.proper_nouns("demo")


def test_more_nouns_may_not_cross_the_splits() -> None:
    taken = min(names.proper_nouns("demo"))
    with pytest.raises(ValueError, match=taken):
        names.companies(random.Random(5), 1, split="train", more_nouns=[taken])


def test_examples_answer_with_the_industry_as_label_or_json() -> None:
    rng = random.Random(6)
    forms = set()
    for company in names.companies(rng, 2_000, split="train"):
        prompt, whole_answer, opening_forced = examples.example(rng, company)
        assert company.name in prompt
        assert "{Company}" not in prompt
        answer = whole_answer.removesuffix("<|end|>")
        if answer.startswith("{"):
            assert company.industry in json.loads(answer).values()
        else:
            assert answer == company.industry
        forms.add((answer.startswith("{"), opening_forced))
    assert forms == {(False, False), (True, False), (True, True)}


def test_a_second_call_writes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "customers"
    paths = customers.write_customers(root, DATES, 30)
    for path in paths:
        os.utime(path, ns=(1, 1))
    assert customers.write_customers(root, DATES, 30) == paths
    assert [path.stat().st_mtime_ns for path in paths] == [1, 1, 1]


def test_a_missing_or_cut_file_is_written_again(tmp_path: Path) -> None:
    root = tmp_path / "customers"
    paths = customers.write_customers(root, DATES, 30)
    whole = [path.read_bytes() for path in paths]
    paths[0].unlink()
    customers.write_customers(root, DATES, 30)
    paths[1].write_bytes(whole[1][:100])
    customers.write_customers(root, DATES, 30)
    assert [path.read_bytes() for path in paths] == whole


def test_other_parameters_replace_the_dataset(tmp_path: Path) -> None:
    root = tmp_path / "customers"
    customers.write_customers(root, DATES, 30)
    paths = customers.write_customers(root, DATES[:2], 30)
    assert [len(rows_of(path)) for path in paths] == [15, 15]
    assert sorted(root.rglob("*.csv")) == sorted(paths)


@pytest.mark.parametrize(
    ("dates", "rows"), [([], 10), (["2026-01-01"] * 2, 10), (["../x"], 10), ([".."], 10), (DATES, 2)]
)
def test_bad_parameters_are_refused_before_anything_is_written(
    tmp_path: Path, dates: list[str], rows: int
) -> None:
    with pytest.raises(ValueError, match="date"):
        customers.write_customers(tmp_path / "customers", dates, rows)
    assert not list(tmp_path.iterdir())


def test_neither_module_imports_torch_until_it_trains() -> None:
    code = "import demo.customers, demo.tiny_model, sys; print({'torch', 'transformers'} & set(sys.modules))"
    root = Path(customers.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
