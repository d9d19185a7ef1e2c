"""The Compose file is valid, and agrees with everything that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from anytime_service.limits.tuning import TUNING
from anytime_service.settings import PREFIX, Settings
from deploy.project import DEPLOY, image_user, settings, version

FILE = DEPLOY / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
README = (DEPLOY / "README.md").read_text(encoding="utf-8")
NGINX = (DEPLOY / "proxies" / "nginx.conf").read_text(encoding="utf-8")

every_service = pytest.mark.parametrize("name", list(SERVICES))


def test_the_file_follows_the_compose_specification_and_a_misspelt_key_is_detected(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    broken = tmp_path / "broken.yaml"
    broken.write_text(FILE.read_text(encoding="utf-8").replace("stop_grace_period", "stop_grace"), encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "-o", "json"]
    done = subprocess.run([*command, str(FILE), str(broken)], capture_output=True, text=True, timeout=120, check=False)
    report = json.loads(done.stdout)
    assert not report["parse_errors"]
    assert {(each["filename"], each["path"]) for each in report["errors"]} == {
        (str(broken), "$.services.anytime"),
        (str(broken), "$.services.nginx"),
    }


@every_service
def test_references_are_declared_and_declarations_are_used(name: str) -> None:
    for kind in ("networks", "secrets"):
        assert set(SERVICES[name].get(kind, ())) <= set(COMPOSE[kind])
        assert {used for each in SERVICES.values() for used in each.get(kind, ())} == set(COMPOSE[kind])
    volumes = {each["source"] for each in SERVICES[name].get("volumes", ()) if each["type"] == "volume"}
    assert volumes <= set(COMPOSE["volumes"])
    assert set(SERVICES[name].get("depends_on", {})) <= set(SERVICES)


@every_service
def test_a_service_that_others_depend_on_has_a_health_check(name: str) -> None:
    for other, dependency in SERVICES[name].get("depends_on", {}).items():
        assert dependency["condition"] == "service_healthy"
        image_has_check = other == "anytime" and "\nHEALTHCHECK " in (DEPLOY.parent / "Dockerfile").read_text()
        assert "healthcheck" in SERVICES[other] or image_has_check


@every_service
def test_every_bind_mount_is_read_only_and_shipped_or_a_required_variable(name: str) -> None:
    for each in SERVICES[name].get("volumes", ()):
        if each["type"] == "bind":
            assert each["read_only"]
            variable = re.fullmatch(r"\$\{(\w+):\?.+\}", each["source"])
            assert variable or (DEPLOY / each["source"]).exists(), each


def test_secrets_are_files_from_required_documented_variables() -> None:
    for secret in COMPOSE["secrets"].values():
        assert re.fullmatch(r"\$\{\w+:\?.+\}", secret["file"])
    variables = set(re.findall(r"\$\{(\w+)", FILE.read_text(encoding="utf-8")))
    assert {each for each in variables if each in README} == variables


@every_service
def test_every_image_has_a_version(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")
    assert image
    assert re.fullmatch(r"v?\d+\.\d+\.\d+(-alpine)?", tag)


def test_our_image_has_this_version_and_runs_as_its_user() -> None:
    ours = SERVICES["anytime"]
    assert (ours["image"], ours["user"]) == (f"anytime-linear:{version()}", image_user())
    assert ours["deploy"]["replicas"] == 2


@every_service
def test_services_have_read_only_images_and_no_privileges(name: str) -> None:
    service = SERVICES[name]
    strict = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    assert strict.items() <= service.items()
    assert int(service["user"].split(":")[0]) > 0
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode"} & set(service)
    limits = set(service["deploy"]["resources"]["limits"])
    assert limits == ({"memory", "pids"} if name == "anytime" else {"cpus", "memory", "pids"}), (
        "a CPU quota would delay deadlines"
    )


def test_every_variable_is_a_setting() -> None:
    variables = SERVICES["anytime"]["environment"]
    assert set(variables) <= settings()
    assert all(name.startswith(PREFIX) for name in variables)
    assert variables["ANYTIME_API_KEYS_FILE"] == f"/run/secrets/{SERVICES['anytime']['secrets'][0]}"


def test_only_the_proxy_and_the_dashboards_are_published_on_the_loopback_interface() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"nginx", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_only_the_service_reaches_redis_and_it_has_no_route_outside() -> None:
    neighbours = {
        name for name, service in SERVICES.items() if set(service["networks"]) & set(SERVICES["redis"]["networks"])
    }
    assert neighbours == {"anytime", "redis"}
    assert all(COMPOSE["networks"][name]["internal"] for name in SERVICES["anytime"]["networks"])


def test_the_proxy_connects_to_the_service_by_name_and_listens_on_its_published_port() -> None:
    assert all(words in NGINX for words in ("server anytime:8000", "listen 8080;"))
    assert SERVICES["nginx"]["ports"] == ["127.0.0.1:8080:8080"]
    assert set(SERVICES["nginx"]["networks"]) & set(SERVICES["anytime"]["networks"])
    assert SERVICES["nginx"]["depends_on"]["anytime"]["restart"], "it resolves the name once"


def test_the_proxy_closes_connections_after_the_longest_deadline_and_before_it_is_killed() -> None:
    [timeout] = re.findall(r"^worker_shutdown_timeout (\d+)s;", NGINX, re.MULTILINE)
    grace = int(SERVICES["nginx"]["stop_grace_period"].removesuffix("s"))
    assert Settings().max_deadline_ms / 1000 < int(timeout) < grace


def test_the_session_store_is_the_shipped_redis() -> None:
    assert SERVICES["anytime"]["environment"]["ANYTIME_SESSION_STORE"] == "redis://redis:6379/0"
    command = SERVICES["redis"]["command"]
    assert [command[command.index(option) + 1] for option in ("--save", "--appendonly")] == ["", "no"]
    assert {"--maxmemory", "--maxmemory-policy"} <= set(command)


def test_the_grace_period_is_long_enough_to_drain() -> None:
    assert int(SERVICES["anytime"]["stop_grace_period"].removesuffix("s")) > 2 * TUNING.linger_s + 1


def test_the_file_limit_allows_the_maximum_of_connections() -> None:
    assert SERVICES["anytime"]["ulimits"]["nofile"] > 2 * Settings().max_connections


def test_the_limit_of_client_values_is_far_below_the_memory_limit() -> None:
    limit = SERVICES["anytime"]["deploy"]["resources"]["limits"]["memory"]
    limit_of_values = int(SERVICES["anytime"]["environment"]["ANYTIME_MAX_HELD_BYTES"])
    assert 4 * limit_of_values <= int(limit.removesuffix("M")) * 1024**2


def test_grafana_requires_the_password() -> None:
    variables = SERVICES["grafana"]["environment"]
    assert variables["GF_AUTH_ANONYMOUS_ENABLED"] == variables["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert variables["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"/run/secrets/{SERVICES['grafana']['secrets'][0]}"


def test_prometheus_scrapes_every_replica_and_grafana_reaches_prometheus() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    (looked_up,) = job["dns_sd_configs"]
    port = int(SERVICES["anytime"]["environment"]["ANYTIME_METRICS_PORT"])
    found = (job["job_name"], looked_up["names"], looked_up["type"], looked_up["port"])
    assert found == ("anytime", ["anytime"], "A", port)  # a name with one address per replica
    assert set(SERVICES["prometheus"]["networks"]) & set(SERVICES["anytime"]["networks"]) == {"metrics"}
    assert set(SERVICES["prometheus"]["networks"]) & set(SERVICES["grafana"]["networks"])
