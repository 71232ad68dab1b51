"""The decorators that DAG authors use.

Comes in: a function of the DAG file. Goes out: an operator whose `preprocess` is that function.
Never here: running the function; it runs on the cluster only.
"""
