"""What Airflow discovers about this provider, by the entry point `apache_airflow_provider`."""

from __future__ import annotations

from typing import Any

_NAME = "Ray Data LLM"


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "airflow-provider-raydatallm",
        "name": _NAME,
        "description": "Runs LLMs over date slices of tables on a Ray cluster with Ray Data LLM and vLLM.",
        "integrations": [
            {"integration-name": _NAME, "external-doc-url": "https://docs.ray.io/", "tags": ["service"]}
        ],
        "operators": _modules("operators.ray_llm_batch", "operators.ray_cluster"),
        "sensors": _modules("sensors.ray_llm_slice"),
        "hooks": _modules("hooks.ray"),
        "triggers": _modules("triggers.ray_job", "triggers.slice_published", "triggers.submission_turn"),
        "config": {
            "ray_llm": {
                "description": "Settings of the Ray Data LLM provider.",
                "options": {
                    "max_log_streams": {
                        "description": (
                            "How many Ray jobs' logs one process, such as a triggerer, copies into the logs "
                            "of their tasks at a time. Further tasks show their progress only."
                        ),
                        "version_added": None,
                        "type": "integer",
                        "example": None,
                        "default": "20",
                    },
                    "max_waiting_jobs": {
                        "description": (
                            "How many jobs may wait for room on one Ray cluster, each as a process on its "
                            "head. Further tasks hold their submission until one of them has had its turn."
                        ),
                        "version_added": None,
                        "type": "integer",
                        "example": None,
                        "default": "8",
                    },
                    "show_samples": {
                        "description": (
                            "Whether Airflow shows texts of rows to those who may read the DAG's XComs: on "
                            "the page in its UI some rows of a slice, published and in quarantine, which the "
                            "API server reads with its own identity; and, also in a task's log and XCom, "
                            "what in errors may quote a row. Workers need it, too."
                        ),
                        "version_added": None,
                        "type": "boolean",
                        "example": None,
                        "default": "False",
                    },
                    "gpu_hour_price": {
                        "description": (
                            "What a GPU costs an hour, where its engine's gpu_hour_price does not say. "
                            "0: unknown, and costs are not shown."
                        ),
                        "version_added": None,
                        "type": "float",
                        "example": "2.5",
                        "default": "0",
                    },
                    "currency": {
                        "description": "Currency of gpu_hour_price: an ISO 4217 code, or any word.",
                        "version_added": None,
                        "type": "string",
                        "example": "EUR",
                        "default": "USD",
                    },
                    "output_url": {
                        "description": (
                            "Where people look at a slice's files in a browser, for the link Output on "
                            "tasks: the web address of the storage's console or of a data catalogue, in "
                            "which {bucket}, {path} (in the bucket) and {address} (s3://bucket/path) are "
                            "replaced, percent-encoded. Empty: no link."
                        ),
                        "version_added": None,
                        "type": "string",
                        "example": "https://console.cloud.google.com/storage/browser/{bucket}/{path}",
                        "default": "",
                    },
                    "token_folder": {
                        "description": (
                            "Folder, besides ~/.ray, of token files that connections of type Ray may name "
                            "(auth_file). Who edits a connection can have any file in it sent to the "
                            "connection's host."
                        ),
                        "version_added": None,
                        "type": "string",
                        "example": "/run/secrets/ray",
                        "default": "",
                    },
                },
            }
        },
        "connection-types": [
            {
                "connection-type": "ray",
                "hook-name": "Ray",
                "hook-class-name": "airflow_provider_raydatallm.hooks.ray.RayHook",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login", "extra"],
                    "relabeling": {"host": "Jobs address", "password": "Token"},
                    "placeholders": {
                        "host": "http://ray-head:8265, or local for an embedded Ray on this machine",
                        "port": "8265, when the address has none",
                        "password": "the cluster's token (ray get-auth-token)",
                    },
                },
                "conn-fields": {
                    "auth_file": _text(
                        "Token file",
                        "Instead of the token: path on the Airflow workers of a file that holds it, in "
                        "~/.ray or [ray_llm] token_folder, mode 0600. It is read again for each request",
                    ),
                    "verify": {
                        "label": "Verify TLS certificate",
                        "schema": {"type": ["boolean", "null"], "default": True},
                    },
                    "ca_file": _text(
                        "CA file",
                        "Path on the Airflow workers of the CA (PEM) that signed the cluster's certificate",
                    ),
                    "client_cert": _text(
                        "Client certificate file", "Path on the Airflow workers, PEM, for mutual TLS"
                    ),
                    "client_key": _text(
                        "Client key file",
                        "Path on the Airflow workers, PEM without passphrase; not needed when the "
                        "certificate's file holds the key too",
                    ),
                    "headers": {
                        "label": "Headers",
                        "description": "JSON object of HTTP headers sent with every request",
                        "schema": {"type": ["object", "null"]},
                    },
                    "proxy": _text(
                        "HTTP proxy",
                        "http://[USER:PASSWORD@]HOST:PORT, instead of the proxies of the environment",
                        format="password",
                    ),
                    "driver_resources": {
                        "label": "Driver resources",
                        "description": (
                            "JSON object of what Ray reserves for a job's own process: num_cpus, memory "
                            "(bytes), resources, label_selector. Ray then places it on any node that has "
                            "them, else on the head"
                        ),
                        "schema": {"type": ["object", "null"]},
                    },
                    "dashboard_url": _text(
                        "Dashboard address",
                        "Address of the Ray Dashboard in links, if it differs from the Jobs address",
                        format="url",
                    ),
                    "engines": {
                        "label": "Engine profiles",
                        "description": 'JSON object of named engines, for the operator\'s engine="l4-small": '
                        '{"l4-small": {"accelerator": "L4", "kwargs": {"max_model_len": 4096}}}',
                        "schema": {"type": ["object", "null"]},
                    },
                },
            }
        ],
        "task-decorators": [
            {
                "name": "ray_llm_batch",
                "class-name": "airflow_provider_raydatallm.decorators.ray_llm_batch.ray_llm_batch_task",
            }
        ],
        "notifications": [
            "airflow_provider_raydatallm.notifications.slice_notifier.SliceNotifier",
        ],
        "cli": ["airflow_provider_raydatallm.cli.airflow_command.get_cli_commands"],
        "extra-links": [
            "airflow_provider_raydatallm.links.ray.RayJobLink",
            "airflow_provider_raydatallm.links.slice_page.SlicePageLink",
            "airflow_provider_raydatallm.links.output.OutputLink",
        ],
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    modules = [f"airflow_provider_raydatallm.{name}" for name in names]
    return [{"integration-name": _NAME, "python-modules": modules}]


def _text(label: str, description: str, **schema: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}
