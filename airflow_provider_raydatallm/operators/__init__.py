"""The operators that DAG authors use.

Comes in: arguments and Airflow's context. Goes out: XCom, asset events, lineage, or an error.
Never here: module-level imports of ray, torch, vllm, pandas or pyarrow: parsing a DAG file must stay cheap.
"""
