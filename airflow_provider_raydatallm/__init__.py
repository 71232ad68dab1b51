"""Apache Airflow provider that runs LLMs over date slices of tables with Ray Data LLM."""

__version__ = "0.1.0"
