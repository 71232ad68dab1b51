# Airflow with this provider. Build it from the repository root: `docker build -f docker/airflow.Dockerfile .`
FROM apache/airflow:3.3.2-python3.11

COPY --chown=airflow:0 LICENSE README.md pyproject.toml /opt/raydatallm/
COPY --chown=airflow:0 airflow_provider_raydatallm /opt/raydatallm/airflow_provider_raydatallm

# Pinned so that pip does not change Airflow's version to fit a dependency.
RUN pip install --no-cache-dir "apache-airflow==${AIRFLOW_VERSION}" /opt/raydatallm
