"""What goes in comes out: tables of any type at any depth, in files of drifting types by several writers, are
published value by value or refused before a row is paid. `tests/oracle` draws and judges them."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator

import pytest

from tests.oracle.campaign import Findings, cause_of, draw, explain, run
from tests.oracle.faults import FAULTS, Fault
from tests.oracle.formats import FORMATS

#: Cases in `make test`, in about 20 s of two slow cores.
_SAMPLED = {"parquet": 90, "csv": 25, "jsonl": 35}
#: Cases of `make long`; `python -m tests.oracle` judges more, in parts.
_LONG_CASES = int(os.environ.get("ORACLE_CASES", "3000"))
_LONG_SEED = int(os.environ.get("ORACLE_SEED", "1"))
_CHUNKS = 6


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Hundreds of slices warn of their prompts."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_what_goes_in_comes_out_or_is_refused_before_a_row_is_paid(name: str) -> None:
    _check(run(name, _SAMPLED[name], 0))


@pytest.mark.long
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_what_goes_in_comes_out_thousands_of_times(name: str, chunk: int) -> None:
    number = _LONG_CASES * _SAMPLED[name] // sum(_SAMPLED.values()) // _CHUNKS
    _check(run(name, number, _LONG_SEED * 1000 + chunk))


def _check(findings: Findings) -> None:
    print(findings.counts.table())
    assert not findings.examples, "\n".join(map(explain, [*findings.examples.values()][:3]))
    assert findings.counts.share("refused") < 0.4  # else it is blind


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_planted_in_the_reader_is_found(fault: Fault) -> None:
    """By a case for which the promise holds without the fault."""
    for number, drawn in enumerate(draw(fault.format, fault.within, 0), 1):
        cause = cause_of(drawn, fault.planted)
        if cause is not None and re.match(fault.found_as, cause) and cause_of(drawn) is None:
            print(f"{fault.name}: case {number}")
            return
    pytest.fail(f"{fault.within} cases do not find it")
