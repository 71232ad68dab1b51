"""What goes in comes out: tables of any type at any depth, in files of drifting types by several writers, are
published value by value or refused before a row is paid. `tests/oracle` draws and judges them."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.oracle.campaign import Findings, cause_of, run
from tests.oracle.check import Violation, check
from tests.oracle.counts import Counts
from tests.oracle.faults import FAULTS, Fault
from tests.oracle.formats import FORMATS, Drawn, cases
from tests.oracle.known import UNFOUND, is_known

#: Cases in `make test`, in about 20 s of two slow cores.
_SAMPLED = {"parquet": 90, "csv": 25, "jsonl": 35}
#: Cases of `make long`; `python -m tests.oracle` runs more, in parts.
_LONG_CASES = int(os.environ.get("ORACLE_CASES", "3000"))
_LONG_SEED = int(os.environ.get("ORACLE_SEED", "1"))
_CHUNKS = 6


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_what_goes_in_comes_out_or_is_refused_before_a_row_is_paid(name: str) -> None:
    counts = Counts()

    @settings(
        max_examples=_SAMPLED[name], deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(name))
    def judge(drawn: Drawn) -> None:
        try:
            checked = check(drawn.case)
        except Violation as violation:
            counts.add("violated", violation.features)
            if not is_known(violation.cause):
                raise
        else:
            counts.add(checked.outcome, checked.features)

    judge()
    print(counts.table())
    assert counts.share("refused") < 0.4  # else it is blind


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_what_goes_in_comes_out_thousands_of_times(chunk: int) -> None:
    findings = Findings()
    total = sum(_SAMPLED.values())
    for name, share in _SAMPLED.items():
        run(name, _LONG_CASES * share // total // _CHUNKS, _LONG_SEED * 1000 + chunk, findings)
    print(findings.counts.table())
    unknown = {cause: findings.examples[cause] for cause in findings.causes if not is_known(cause)}
    assert not unknown


@pytest.mark.long
@pytest.mark.parametrize("fault", [
    pytest.param(f, id=f.name, marks=[pytest.mark.xfail(strict=True)] * (f.name in UNFOUND)) for f in FAULTS
])  # fmt: skip
def test_fault_planted_in_the_reader_is_found(fault: Fault) -> None:
    """By a case for which the promise holds without the fault."""
    judged: list[Drawn] = []
    found: list[Drawn] = []

    @settings(
        max_examples=fault.within, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(cases(fault.format))
    def judge(drawn: Drawn) -> None:
        if not found:
            judged.append(drawn)
            cause = cause_of(drawn, fault.planted)
            if cause is not None and re.match(fault.found_as, cause) and cause_of(drawn) is None:
                found.append(drawn)

    judge()
    print(f"{fault.name}: after {len(judged)} cases")
    assert found
