"""Runs the missing rows of a slice on a Ray cluster.

In: an inference plan and the missing rows. Out: fragments in the checkpoint folder, and counts for the
driver. Answers never pass through the driver; nothing here decides what a slice publishes.
"""
