"""`make bench [CASES="plan_scale csv_plan"]`: runs the cases, one after another, and prints their tables."""

from __future__ import annotations

import argparse
import importlib

CASES = (
    "no_op",
    "csv_plan",
    "ledger_scale",
    "plan_scale",
    "checkpoint_cost",
    "resume_cost",
    "driver_memory",
    "deferred",
    "slice_cost",
    "warm_slice",
    "plain_script",
    "repeated_rows",
    "llm_actor",
    "measure_cost",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; all by default")
    cases = parser.parse_args().cases or CASES
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
