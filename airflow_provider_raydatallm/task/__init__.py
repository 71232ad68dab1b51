"""One attempt of a task: from the operator's arguments to a Ray job, its verdict and the task's result.

Comes in: arguments, Airflow's context, a job's log and status. Goes out: a job to wait for, XCom or an error.
Never here: HTTP (`hooks`), uploads (`submit`), the work of the job (`processor`).
"""
