"""What Airflow's API server does for tasks of this provider.

Comes in: task instances that a person marks. Goes out: the stop of their Ray jobs.
Never here: an import, at the top of `mark_listener`, of more than Airflow: every Airflow process loads it.
"""
