"""Measurements: `make bench`. Ratios and sizes within one run; nothing here is a test."""
