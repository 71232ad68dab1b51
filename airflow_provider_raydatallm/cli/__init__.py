"""`airflow-ray-llm`, the command line.

In: arguments. Out: text or JSON on stdout, errors on stderr, an exit code. Never here: the work itself;
commands only call the other folders.
"""
