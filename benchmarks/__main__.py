"""`make bench [CASES="plan_scale csv_plan"]`: runs the cases, one after another, and prints their tables."""

from __future__ import annotations

import argparse
import importlib

#: Against others, and against ways to do without: what `make bench` runs.
FIELD = ("peers", "backfill", "warm_slice", "repeated_rows", "row_cost")
#: Parts of the provider, and what they cost.
PARTS = (
    "no_op",
    "csv_plan",
    "ledger_scale",
    "plan_scale",
    "checkpoint_cost",
    "resume_cost",
    "driver_memory",
    "deferred",
    "slice_cost",
    "plain_script",
    "llm_actor",
    "measure_cost",
)
CASES = FIELD + PARTS


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; {', '.join(FIELD)} by default"
    )
    cases = parser.parse_args().cases or FIELD
    if unknown := sorted(set(cases) - set(CASES)):
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    met = {}
    for name in cases:
        print(f"\n## {name}\n", flush=True)
        met[name] = importlib.import_module(f"benchmarks.{name}").run()
    missed = [name for name, ok in met.items() if ok is False]
    print(f"goals not met in: {', '.join(missed)}" if missed else "all goals met")


if __name__ == "__main__":
    main()
