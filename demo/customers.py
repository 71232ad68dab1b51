"""Writes a customers dataset of companies of known industry: `python -m demo.customers ROOT --rows 12000`.

The columns are those of the well-known customers sample CSV. The files are Hive-partitioned by date, with LF
line ends and RFC 4180 quotes where a company's name has a comma or a quote. The same parameters always give
the same bytes.

`industry_of(company)` is the true industry. The demo's model was trained on none of these names
(`demo.names`).

Imports the standard library only.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import sys
import time
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from demo import names
from demo.names import DATA, DATA_FILE, LABELS, PLACES, SURNAMES, companies, industry_of

__all__ = ["COLUMNS", "LABELS", "industry_of", "write_customers"]

COLUMNS = (
    "Index",
    "Customer Id",
    "First Name",
    "Last Name",
    "Company",
    "City",
    "Country",
    "Phone 1",
    "Phone 2",
    "Email",
    "Subscription Date",
    "Website",
)

DEFAULT_ROWS = 12_000
DEFAULT_DATES = ("2026-01-01", "2026-01-02", "2026-01-03")
DEFAULT_SEED = 7
FILE_NAME = "customers.csv"


def write_customers(
    root: Path,
    dates: Sequence[str] = DEFAULT_DATES,
    rows: int = DEFAULT_ROWS,
    seed: int = DEFAULT_SEED,
    *,
    progress: Callable[[int], None] | None = None,
) -> list[Path]:
    """Write `root/ds=<date>/customers.csv` for each date and return those paths in the order of `dates`.

    The dates share `rows` evenly (the first ones take the remainder). Index runs from 1 through all files,
    and Subscription Date is the date of the folder. Each file is streamed, with 10,000 rows in memory, and
    appears in one atomic step. `progress` gets the number of rows written so far.

    If the dataset exists, nothing is written: `<root>.made.json`, beside the dataset, records the parameters
    and file sizes. If it records other parameters, the files that it names are replaced or removed. Raises
    ValueError for dates that repeat or are not valid folder names, and for fewer rows than dates.
    """
    if not dates or len(set(dates)) != len(dates):
        raise ValueError(f"dates must not be empty or repeat: {list(dates)}")
    for date in dates:
        if not re.fullmatch(r"\w[\w.:-]*", date, re.ASCII):
            raise ValueError(f"date {date!r} cannot be a folder name: use text such as 2026-01-31")
    if rows < len(dates):
        raise ValueError(f"rows={rows} is less than one row for each of the {len(dates)} dates")
    root = Path(root)
    relative = [f"ds={date}/{FILE_NAME}" for date in dates]
    paths = [root / name for name in relative]
    marker = root.with_name(f"{root.name}.made.json")
    sources = (Path(__file__), Path(names.__file__), DATA_FILE)
    source = zlib.crc32(b"".join(path.read_bytes() for path in sources))
    parameters = {"rows": rows, "dates": list(dates), "seed": seed, "source": source}
    recorded = _read_marker(marker)
    sizes: dict[str, int] = recorded.pop("sizes", {})
    if recorded == parameters and all(_size(root / name) == sizes.get(name) for name in relative):
        return paths

    marker.unlink(missing_ok=True)
    for stale in sizes.keys() - set(relative):
        (root / stale).unlink(missing_ok=True)
    share, extra = divmod(rows, len(dates))
    done = 0
    for position, (date, path) in enumerate(zip(dates, paths, strict=True)):
        count = share + (position < extra)
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with unfinished.open("w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(COLUMNS)
                for block in _blocks(random.Random(f"{seed}/{date}"), date, done + 1, count):
                    writer.writerows(block)
                    done += len(block)
                    if progress is not None:
                        progress(done)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    sizes = {name: (root / name).stat().st_size for name in relative}
    marker.write_text(json.dumps({**parameters, "sizes": sizes}, indent=1) + "\n", encoding="utf-8")
    return paths


# --- columns ---------------------------------------------------------------------------------------------

_STEMS, _ENDS = DATA["town_stems"].split(), DATA["town_ends"].split()
_TOWNS = [
    *map("".join, product(_STEMS, _ENDS)),
    *(f"{start} {stem}{end}" for start, stem, end in product(DATA["town_starts"].split(), _STEMS, _ENDS[:4])),
    *DATA["more_towns"],
]
_TOP_LEVEL = ("com", "com", "com", "net", "org", "biz", "info", "co")
_PHONES = (
    "{0:03d}-{1:03d}-{2:04d}",
    "{0:03d}.{1:03d}.{2:04d}",
    "({0:03d}){1:03d}-{2:04d}",
    "+1-{0:03d}-{1:03d}-{2:04d}",
    "{0:03d}{1:03d}{2:04d}",
    "{0:03d}.{1:03d}.{2:04d}x{3:03d}",
    "001-{0:03d}-{1:03d}-{2:04d}x{3:03d}",
)


def _ascii(name: str) -> str:
    """Returns a name as addresses spell it: lower case, without accents."""
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()


_FIRST_PAIRS = [(name, _ascii(name)) for name in DATA["first_names"].split()]
_LAST_PAIRS = [(name, _ascii(name)) for name in SURNAMES]
_HOSTS = [
    f"{_ascii(name)}{rest}" for name, rest in product([*SURNAMES, *PLACES], ("", "-group", "hq", "-inc"))
]
_DOMAINS = [f"{host}.{_TOP_LEVEL[position % len(_TOP_LEVEL)]}" for position, host in enumerate(_HOSTS)]
_BLOCK_ROWS = 10_000


def _blocks(rng: random.Random, date: str, first_index: int, rows: int) -> Iterator[list[tuple[object, ...]]]:
    """Yields the rows of one date as tuples in the order of COLUMNS, in blocks of at most `_BLOCK_ROWS`."""
    day = date[:10]
    for start in range(first_index, first_index + rows, _BLOCK_ROWS):
        count = min(_BLOCK_ROWS, first_index + rows - start)
        first = rng.choices(_FIRST_PAIRS, k=count)
        last = rng.choices(_LAST_PAIRS, k=count)
        hosts = rng.choices(_DOMAINS, k=count)
        columns: tuple[Iterable[object], ...] = (
            range(start, start + count),
            [f"{rng.getrandbits(60):015X}" for _ in range(count)],
            [name for name, _ in first],
            [name for name, _ in last],
            [company.name for company in companies(rng, count, split="demo")],
            rng.choices(_TOWNS, k=count),
            rng.choices(DATA["countries"], k=count),
            _phones(rng, count),
            _phones(rng, count),
            [
                f"{first_name}.{last_name}@{host}"
                for (_, first_name), (_, last_name), host in zip(first, last, hosts, strict=True)
            ],
            [day] * count,
            [f"https://www.{host}/" for host in rng.choices(_DOMAINS, k=count)],
        )
        yield list(zip(*columns, strict=True))


def _phones(rng: random.Random, count: int) -> list[str]:
    numbers = [rng.getrandbits(40) for _ in range(count)]
    return [
        form.format(200 + number % 799, (number >> 10) % 1000, (number >> 20) % 10_000, (number >> 30) % 1000)
        for form, number in zip(rng.choices(_PHONES, k=count), numbers, strict=True)
    ]


def _read_marker(marker: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(marker.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return read


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m demo.customers", description="Write the demo's customers dataset."
    )
    parser.add_argument(
        "root", type=Path, help="folder of the dataset; files go to ROOT/ds=<date>/customers.csv"
    )
    parser.add_argument(
        "--rows", type=int, default=DEFAULT_ROWS, help="rows of all dates together (default %(default)s)"
    )
    parser.add_argument("--dates", nargs="+", default=list(DEFAULT_DATES), metavar="DATE")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    options = parser.parse_args(arguments)
    written = 0

    def show(rows: int) -> None:
        nonlocal written
        written = rows
        if sys.stderr.isatty():
            print(f"\r{rows:,} of {options.rows:,} rows", end="", file=sys.stderr, flush=True)

    start = time.monotonic()
    try:
        paths = write_customers(options.root, options.dates, options.rows, options.seed, progress=show)
    except ValueError as error:
        parser.error(str(error))
    if written and sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr)
    what = f"{written:,} rows written in {time.monotonic() - start:.1f} s" if written else "already there"
    print(f"{options.root}: {len(paths)} files, {what}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
