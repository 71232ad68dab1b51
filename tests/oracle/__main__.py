"""`python -m tests.oracle`: judges thousands of cases, and prints counts and the simplest case of each cause.

Everything follows from the seed. Cases are judged in chunks; a finished one is noted in `.oracle/`, and a run
with the same seed goes on behind it. The exit status is 1 when the promise did not hold for a case.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter
from pathlib import Path

from tests import conftest  # noqa: F401  Airflow's home, before anything imports Airflow
from tests.oracle.campaign import explain, run
from tests.oracle.check import Violation, check
from tests.oracle.counts import Counts
from tests.oracle.formats import FORMATS, Drawn

NOTES = Path(".oracle")
_CHUNK = 250
#: Cases of a format among a hundred.
SHARES = {"parquet": 60, "csv": 15, "jsonl": 25}


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.oracle", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=2_000, help="of all formats together")
    parser.add_argument("--formats", default=",".join(FORMATS), help="of " + ", ".join(FORMATS))
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no chunk after that")
    parser.add_argument("--no-shrink", action="store_true", help="show cases as they were found")
    parser.add_argument("--replay", metavar="TOKEN", help="judge this case only")
    args = parser.parse_args()
    os.fsync = lambda handle: None  # type: ignore[assignment]  # nothing here loses power
    logging.disable(logging.CRITICAL)
    if args.replay:
        return _replay(Drawn.from_token(args.replay))
    began = time.monotonic()
    NOTES.mkdir(exist_ok=True)
    chunks = _chunks(args.seed, args.cases, args.formats.split(","))
    for name, start, number in chunks:
        note = NOTES / f"{args.seed}-{name}-{start}-{number}.json"
        if note.exists():
            continue
        if time.monotonic() - began > args.minutes * 60:
            print("Run this again to go on")
            break
        _judge_chunk(name, start, number, note)
    return _report(args.seed, shrunk=not args.no_shrink)


def _chunks(seed: int, cases: int, names: list[str]) -> list[tuple[str, int, int]]:
    """Formats, seeds and numbers of cases: of all formats in turn, so that every part of a run has each."""
    total = sum(SHARES[name] for name in names)
    left = {name: cases * SHARES[name] // total for name in names}
    chunks: list[tuple[str, int, int]] = []
    while any(left.values()):
        for name in names:
            if number := min(left[name], _CHUNK * SHARES[name] // max(SHARES.values())):
                chunks.append((name, seed * 1_000_000 + len(chunks), number))
                left[name] -= number
    return chunks


def _judge_chunk(name: str, start: int, number: int, note: Path) -> None:
    began = time.monotonic()
    findings = run(name, number, start)
    seconds = time.monotonic() - began
    violations = findings.causes.total()
    print(f"{name:<8} seed {start}: {number} cases, {number / seconds:.1f}/s, {violations} violations")
    note.write_text(json.dumps({
        "counts": findings.counts.to_json(), "causes": findings.causes, "seconds": seconds,
        "examples": {cause: drawn.token for cause, drawn in findings.examples.items()},
    }))  # fmt: skip


def _report(seed: int, *, shrunk: bool) -> int:
    counts, causes, seconds = Counts(), Counter[str](), 0.0
    examples: dict[str, Drawn] = {}
    for note in sorted(NOTES.glob(f"{seed}-*.json")):
        chunk = json.loads(note.read_text())
        counts.merge(chunk["counts"])
        causes.update(chunk["causes"])
        seconds += chunk["seconds"]
        for cause, token in chunk["examples"].items():
            examples.setdefault(cause, Drawn.from_token(token))
    print(f"\n{counts.cases} cases, {counts.cases / max(seconds, 1e-9):.1f}/s\n{counts.table()}\n")
    for cause, number in causes.most_common():
        print(f"--- {number} times: {cause}")
        print(explain(examples[cause]) if shrunk else examples[cause])
    return 1 if causes else 0


def _replay(drawn: Drawn) -> int:
    print(drawn)
    try:
        checked = check(drawn.case)
    except Violation as violation:
        print(f"{violation}\n")
        return 1
    print(f"{checked.outcome}: {checked.message}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
