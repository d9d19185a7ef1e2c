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
from anytime_service.settings import Settings
from deploy.project import DEPLOY, at, image_user, settings, version

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


SECRETS = {name: f"/run/secrets/{SERVICES[name]['secrets'][0]}" for name in ("anytime", "grafana")}
STATED = {
    "anytime/image": f"anytime-linear:{version()}",
    "anytime/user": image_user(),
    "anytime/deploy/replicas": 2,
    "anytime/environment/ANYTIME_API_KEYS_FILE": SECRETS["anytime"],
    "anytime/environment/ANYTIME_SESSION_STORE": "redis://redis:6379/0",
    "nginx/ports": ["127.0.0.1:8080:8080"],
    "nginx/depends_on/anytime/restart": True,
    "grafana/environment/GF_AUTH_ANONYMOUS_ENABLED": "false",
    "grafana/environment/GF_USERS_ALLOW_SIGN_UP": "false",
    "grafana/environment/GF_SECURITY_ADMIN_PASSWORD__FILE": SECRETS["grafana"],
}
"""What other files say: version and user of the image, secrets, the shipped Redis, and nginx, which resolves a name
once. Grafana requires the password."""


@pytest.mark.parametrize("path", STATED)
def test_a_value_is_that_of_the_file_on_which_it_depends(path: str) -> None:
    assert at(SERVICES, path) == STATED[path]


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
    assert set(SERVICES["anytime"]["environment"]) <= settings()


def test_only_the_proxy_and_the_dashboards_are_published_on_the_loopback_interface() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert set(published) == {"nginx", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_services_reach_each_other_by_their_networks_and_only_ours_reaches_redis_and_nothing_outside() -> None:
    networks = {name: set(service["networks"]) for name, service in SERVICES.items()}
    assert {name for name in networks if networks[name] & networks["redis"]} == {"anytime", "redis"}
    assert all(COMPOSE["networks"][name]["internal"] for name in networks["anytime"])
    assert networks["nginx"] & networks["anytime"]
    assert networks["prometheus"] & networks["anytime"] == {"metrics"}
    assert networks["prometheus"] & networks["grafana"]


def test_the_proxy_connects_to_the_service_and_closes_connections_after_the_longest_deadline_before_it_is_killed() -> (
    None
):
    assert all(words in NGINX for words in ("server anytime:8000", "listen 8080;"))
    [timeout] = re.findall(r"^worker_shutdown_timeout (\d+)s;", NGINX, re.MULTILINE)
    grace = int(SERVICES["nginx"]["stop_grace_period"].removesuffix("s"))
    assert Settings().max_deadline_ms / 1000 < int(timeout) < grace


def test_redis_stores_nothing_on_disk_and_has_a_memory_limit() -> None:
    command = SERVICES["redis"]["command"]
    assert [command[command.index(option) + 1] for option in ("--save", "--appendonly")] == ["", "no"]
    assert {"--maxmemory", "--maxmemory-policy"} <= set(command)


def test_the_limits_of_the_service_leave_time_to_drain_and_room_for_connections_and_values() -> None:
    ours = SERVICES["anytime"]
    assert int(ours["stop_grace_period"].removesuffix("s")) > 2 * TUNING.linger_s + 1
    assert ours["ulimits"]["nofile"] > 2 * Settings().max_connections
    memory = int(ours["deploy"]["resources"]["limits"]["memory"].removesuffix("M")) * 1024**2
    assert 4 * int(ours["environment"]["ANYTIME_MAX_HELD_BYTES"]) <= memory


def test_prometheus_scrapes_every_replica() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    (looked_up,) = job["dns_sd_configs"]
    port = int(SERVICES["anytime"]["environment"]["ANYTIME_METRICS_PORT"])
    found = (job["job_name"], looked_up["names"], looked_up["type"], looked_up["port"])
    assert found == ("anytime", ["anytime"], "A", port)  # a name with one address per replica
