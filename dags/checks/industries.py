"""What can be said of industries without a model."""

import pyarrow.compute as pc
import pyarrow.dataset as ds


def share_of_contradictions(answers: ds.Dataset) -> float:
    """Of the companies that call themselves a bank, those that were given another industry."""
    banks = answers.to_table(filter=pc.match_substring_regex(ds.field("Company"), r"\bBank\b"))
    others = pc.not_equal(banks["industry"], "Bank")
    return float(pc.mean(others).as_py() or 0)
