"""From an Airflow connection of type `ray` to calls of its cluster's Jobs API.

In: a connection, requests. Out: `RayHook`, answers, errors of `exceptions` that name the connection. Never
here: decisions about tasks or jobs, and secrets in logs or errors.
"""
