"""`make bench [CASES=...]`: runs the cases and prints a table."""

from __future__ import annotations

import argparse

from benchmarks import driver_memory

CASES = {"driver_memory": driver_memory.run}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", choices=[[], *CASES], help=f"of {', '.join(CASES)}; all by default"
    )
    for name in parser.parse_args().cases or CASES:
        print(f"\n## {name}\n")
        CASES[name]()


if __name__ == "__main__":
    main()
