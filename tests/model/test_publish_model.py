"""Nothing breaks in any interleaving; and every rule is needed: without it, something does."""

from __future__ import annotations

import pytest

from tests.model.explore import Result, explore
from tests.model.scenarios import DAILY, LONG, WITHOUT, Without
from tests.model.state import Rules, Scenario

#: W1 is the one weakness of the protocol: README.md says for whom.
ALLOWED = {"W1"}


def schedules(result: Result) -> str:
    broken = {what: path for what, path in result.broken.items() if what.split()[0] not in ALLOWED}
    return "\n".join("\n  ".join([what, *path]) for what, path in broken.items())


@pytest.mark.parametrize("scenario", DAILY, ids=lambda m: m.title)
def test_nothing_breaks(scenario: Scenario) -> None:
    result = explore(scenario)
    assert result.names <= ALLOWED, schedules(result)


@pytest.mark.long
@pytest.mark.parametrize("scenario", LONG, ids=lambda m: m.title)
def test_nothing_breaks_with_more_at_once(scenario: Scenario) -> None:
    result = explore(scenario)
    assert result.names <= ALLOWED, schedules(result)


@pytest.mark.parametrize("without", [w for w in WITHOUT if not w.takes_long], ids=lambda w: w.title)
def test_a_rule_is_needed(without: Without) -> None:
    breaks(without)


@pytest.mark.long
@pytest.mark.parametrize(
    "without",
    [w for w in WITHOUT if len(w.scenario.actors) >= 3 and w.rule != "damage"],
    ids=lambda w: w.title,
)
def test_a_rule_is_needed_with_more_at_once(without: Without) -> None:
    breaks(without)


def breaks(without: Without) -> None:
    result = explore(without.scenario._replace(rules=without.rules), until=without.breaks)
    assert result.names >= without.breaks


def test_every_rule_is_switched_off_once() -> None:
    of_no_matter = {"staged_first", "look_again", "quick", "adopt"}  # scenarios have them the other way
    assert {w.rule for w in WITHOUT} | of_no_matter == set(Rules._fields)


def test_every_property_can_break() -> None:
    names = {"I1", "I2", "I3", "I4", "I4b", "I5", "I6", "I7", "I8", "I9", "I10"}
    names |= {"I11", "I12", "I13", "I14"}
    names |= {"P1", "R1", "R2", "G1", "G2", "E1", "E2", "E3"}
    assert set().union(*(w.breaks for w in WITHOUT)) == names


def test_one_weakness_is_left() -> None:
    """A run that slept before it removes `_SUCCESS` takes the one of a finished version away for a while."""
    result = explore(DAILY[0])
    assert result.names == {"W1"}
