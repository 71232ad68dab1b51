"""What the property test finds and is not repaired yet: the beginnings of causes. To be empty."""

from __future__ import annotations

import re

KNOWN: list[str] = [
    # A column or field of nulls alone keeps Arrow's type null.
    r"type: null throughout",
    # UUIDs in lists, structs and maps become bytes; beside bytes they are bytes.
    r"changed: uuid became bytes", r"type: .*arrow\.uuid.* became",
    # Integers and decimals become floats: nested, beside floats, over 64 bits in JSON.
    r"type: (u?int|decimal).* became (float|double|halffloat)", r"type: integers became floats",
    r"changed: (int|decimal) became float", r"prompt: (int|list|struct|map)",
    # INT96 is read in nanoseconds, and its zone is lost.
    r"changed( in quarantine)?: (local|instant) became (another|local)", r"changed for \w+: (local|instant)",
    # Durations are cast with the wrong unit; times in prompts lose nanoseconds.
    r"changed: duration", r"prompt: time", r"changed: time",
    # A byte order mark that begins a CSV file's first value; text beside bytes.
    r"changed: str became (another|bytes)",
    # Headers, names, types and texts that must be refused.
    r"accepted: ",
    # Fields that may not be null, other units and zones, null in lists: refused, or found after payment.
    r"refused: .*(does not fit the files before|column NAME is timestamp)",
    r"refused: .*(non-nullable|Expected all lists|Length spanned|Precision is not|Invalid)",
    # Crashes instead of refusals; the first half second of nanoseconds is no day of `source.column`.
    r"crashed: (KeyError|ArrowInvalid)", r"refused: slice NAME is empty",
    r"refused: .*the header cannot be read", r"refused: .*CSV parse error",
    # Digits in a JSON text are taken for an integer of a column of floats.
    r"refused: .*mixes floats with integers",
    r"paid: ", r"kind: transient", r"rows: ",
    # Messages without a file or a column.
    r"unnamed: ",
    # Decimals of over 38 digits, which Polars does not read.
    r"unreadable: polars .*(precision|PanicException)",
]  # fmt: skip

#: Planted faults that the product has anyway.
UNFOUND = {"INT96 read in nanoseconds"}


def is_known(cause: str) -> bool:
    return any(re.match(pattern, cause) for pattern in KNOWN)


#: Fault files, and odd types, that are neither published right nor refused in time.
UNREPAIRED = {
    "INT96 of year 9999", "INT96 of year 9999 in lists and structs", "list of structs with a field of nulls",
    "column of nulls", "struct with a required child", "UUIDs in structs", "two columns of one name",
    "rows without columns", "text that is not UTF-8", "time that is adjusted to UTC",
    "decimal of more digits than its type", "integers with untrue statistics", "ENUM",
    "interval of old files", "row group that counts more rows than it has", "DuckDB's INTERVAL",
    "DuckDB's INTERVAL in a struct",
    "DuckDB's TIMETZ", "DuckDB's UUID in a list", "DuckDB's TIME_NS", "DuckDB's VARIANT", "Polars' Int128",
    "pandas' periods", "JSON nulls, then lists", "CSV value that begins with a byte order mark",
    "INTERVAL 1 month", "{'a': [INTERVAL 1 month]}", "'12:00:00+02'::TIMETZ",
}  # fmt: skip
