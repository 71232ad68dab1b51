"""Links that the Airflow UI shows on a task."""
