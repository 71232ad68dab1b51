"""The Ray side: a program that runs one slice on a Ray cluster (`python -m ... .processor run SPEC`).

In: a `SliceJob`. Out: a published slice and its report. Never here: Airflow.
"""
