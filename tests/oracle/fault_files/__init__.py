"""Small twins of files that readers got wrong, by their published issues. Each is made here, and judged as
any case: published value by value, or refused before a row is paid."""
