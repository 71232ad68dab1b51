"""The contract: what Airflow sends (`spec/`) and what Ray sends back (`result`, `log`).

Both sides import it. It holds values and pure functions on pydantic and the standard library, and never
imports airflow, ray or pyarrow, nor reads or writes files.
"""
