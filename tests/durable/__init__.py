"""Slices on real Airflow processes, PostgreSQL and a real Ray head, any of which may die meanwhile.

A test has the engine hold a slice, does something to what is at work on it, lets it go on and says what has
to become of it, in one line, which is also a line of the table that the session ends with:

    def test_killed_worker_costs_no_row(airflow, outcomes, make_table, mode):
        table = make_table("2025-01-01")
        table.hold("2025-01-01", 2)
        conf = {"table": table.name, "slice": "2025-01-01"}
        task = airflow.api.trigger(f"manual_{mode}", conf=conf)
        table.wait_answered("2025-01-01", 2)
        airflow.worker(task).kill()
        airflow.api.wait(task, "running", try_number=2)
        table.release("2025-01-01")
        line = outcomes.see("worker killed", mode, task, table, "2025-01-01")
        assert line == Line("worker killed", mode, "published", 1, 0, "right", "success")

All tests of a session share one Airflow and one head: a test that takes a part of them away brings it back.
What takes minutes is marked `long`.
"""
