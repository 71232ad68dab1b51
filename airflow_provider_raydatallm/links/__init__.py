"""Links that the Airflow UI shows on a task.

Comes in: an XCom of the task. Goes out: a URL.
Never here: calls to a cluster or to storage.
"""
