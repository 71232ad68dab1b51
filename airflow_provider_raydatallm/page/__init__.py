"""The page in Airflow's UI: an app of the API server that reads and never writes.

Comes in: names of DAGs, tasks and runs, by a user of Airflow. Goes out: JSON of their slices, and the page.
Never here: a read without Airflow's permission on the DAG, or of an address that a client sends.
"""
