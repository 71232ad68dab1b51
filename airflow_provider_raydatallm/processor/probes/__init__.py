"""Rows that a run asks to learn how good its answers are, and that nobody publishes."""
