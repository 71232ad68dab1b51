"""Labels that are compared instead of written: what a worker asks about them.

In: a job's `choices`, a row's prompt. Out: trees of the tokens to compare. Never here: vLLM, or a row's
answer.
"""
