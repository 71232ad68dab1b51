"""The Ray side: a plain program that answers one slice on a Ray cluster. It never imports Airflow.

`python -m airflow_provider_raydatallm.processor run SPEC`
"""
