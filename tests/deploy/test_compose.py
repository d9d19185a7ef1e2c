"""The Compose file: as its specification has it, and true of everything that it names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from anytime_service.http.exchange import LINGER_S
from anytime_service.settings import PREFIX, Settings
from deploy.named import DEPLOY, image_user, settings, version

FILE = DEPLOY / "compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
README = (DEPLOY / "README.md").read_text(encoding="utf-8")

every_service = pytest.mark.parametrize("name", list(SERVICES))


def test_the_file_is_as_the_compose_specification_has_it_and_a_misspelt_key_would_be_found(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    broken = tmp_path / "broken.yaml"
    broken.write_text(FILE.read_text(encoding="utf-8").replace("stop_grace_period", "stop_grace"), encoding="utf-8")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "-o", "json"]
    done = subprocess.run([*command, str(FILE), str(broken)], capture_output=True, text=True, timeout=120, check=False)
    told = json.loads(done.stdout)
    assert not told["parse_errors"]
    assert {(each["filename"], each["path"]) for each in told["errors"]} == {
        (str(broken), "$.services.anytime"),
        (str(broken), "$.services.nginx"),
    }


@every_service
def test_what_a_service_refers_to_is_declared_and_what_is_declared_is_used(name: str) -> None:
    for kind in ("networks", "secrets"):
        assert set(SERVICES[name].get(kind, ())) <= set(COMPOSE[kind])
        assert {used for each in SERVICES.values() for used in each.get(kind, ())} == set(COMPOSE[kind])
    volumes = {each["source"] for each in SERVICES[name].get("volumes", ()) if each["type"] == "volume"}
    assert volumes <= set(COMPOSE["volumes"])
    assert set(SERVICES[name].get("depends_on", {})) <= set(SERVICES)


@every_service
def test_a_service_that_is_waited_for_can_tell_that_it_is_well(name: str) -> None:
    for other, told in SERVICES[name].get("depends_on", {}).items():
        assert told["condition"] == "service_healthy"
        image_tells = other == "anytime" and "\nHEALTHCHECK " in (DEPLOY.parent / "Dockerfile").read_text()
        assert "healthcheck" in SERVICES[other] or image_tells


@every_service
def test_every_folder_and_file_that_is_mounted_is_shipped_or_asked_for_and_mounted_to_be_read(name: str) -> None:
    for each in SERVICES[name].get("volumes", ()):
        if each["type"] == "bind":
            assert each["read_only"]
            asked = re.fullmatch(r"\$\{(\w+):\?.+\}", each["source"])
            assert asked or (DEPLOY / each["source"]).exists(), each


def test_secrets_are_files_that_who_starts_it_has_to_name() -> None:
    for told in COMPOSE["secrets"].values():
        assert re.fullmatch(r"\$\{\w+:\?.+\}", told["file"])
    asked = set(re.findall(r"\$\{(\w+)", FILE.read_text(encoding="utf-8")))
    assert {each for each in asked if each in README} == asked


@every_service
def test_every_image_has_a_version(name: str) -> None:
    image, _, tag = SERVICES[name]["image"].rpartition(":")
    assert image
    assert re.fullmatch(r"v?\d+\.\d+\.\d+(-alpine)?", tag)


def test_our_own_image_is_that_of_this_version_and_runs_as_its_user() -> None:
    ours = SERVICES["anytime"]
    assert ours["image"] == f"anytime-linear:{version()}"
    assert ours["user"] == image_user()
    assert ours["deploy"]["replicas"] == 2


@every_service
def test_no_service_can_write_to_its_image_or_become_more_than_it_is(name: str) -> None:
    told = SERVICES[name]
    assert told["read_only"] is True
    assert told["cap_drop"] == ["ALL"]
    assert told["security_opt"] == ["no-new-privileges:true"]
    assert int(told["user"].split(":")[0]) > 0
    assert not {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode"} & set(told)
    limits = set(told["deploy"]["resources"]["limits"])
    assert limits == ({"memory", "pids"} if name == "anytime" else {"cpus", "memory", "pids"}), (
        "deadlines bear no quota"
    )


def test_every_variable_is_a_setting() -> None:
    told = SERVICES["anytime"]["environment"]
    assert set(told) <= settings()
    assert all(name.startswith(PREFIX) for name in told)
    assert told["ANYTIME_API_KEYS_FILE"] == f"/run/secrets/{SERVICES['anytime']['secrets'][0]}"


def test_only_the_proxy_and_the_dashboards_are_published_and_to_this_machine_alone() -> None:
    published = {name: told["ports"] for name, told in SERVICES.items() if "ports" in told}
    assert set(published) == {"nginx", "grafana"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_nobody_reaches_redis_but_the_service_and_the_service_reaches_nothing_outside() -> None:
    beside = {name for name, told in SERVICES.items() if set(told["networks"]) & set(SERVICES["redis"]["networks"])}
    assert beside == {"anytime", "redis"}
    assert all(COMPOSE["networks"][name]["internal"] for name in SERVICES["anytime"]["networks"])


def test_the_proxy_asks_the_service_by_its_name_and_listens_where_it_is_published() -> None:
    proxy = (DEPLOY / "proxies" / "nginx.conf").read_text(encoding="utf-8")
    assert "server anytime:8000" in proxy
    assert "listen 8080;" in proxy
    assert SERVICES["nginx"]["ports"] == ["127.0.0.1:8080:8080"]
    assert set(SERVICES["nginx"]["networks"]) & set(SERVICES["anytime"]["networks"])
    assert SERVICES["nginx"]["depends_on"]["anytime"]["restart"], "it looks the name up once"


def test_the_proxy_ends_its_connections_before_it_is_ended_and_after_the_longest_deadline() -> None:
    proxy = (DEPLOY / "proxies" / "nginx.conf").read_text(encoding="utf-8")
    [patience] = re.findall(r"^worker_shutdown_timeout (\d+)s;", proxy, re.MULTILINE)
    grace = int(SERVICES["nginx"]["stop_grace_period"].removesuffix("s"))
    assert Settings().max_deadline_ms / 1000 < int(patience) < grace


def test_the_session_store_is_the_redis_beside_it() -> None:
    assert SERVICES["anytime"]["environment"]["ANYTIME_SESSION_STORE"] == "redis://redis:6379/0"
    command = SERVICES["redis"]["command"]
    assert command[command.index("--save") + 1] == ""
    assert command[command.index("--appendonly") + 1] == "no"
    assert {"--maxmemory", "--maxmemory-policy"} <= set(command)


def test_a_replica_is_given_the_time_that_draining_takes() -> None:
    assert int(SERVICES["anytime"]["stop_grace_period"].removesuffix("s")) > 2 * LINGER_S + 1


def test_there_is_room_for_as_many_connections_as_the_service_takes() -> None:
    assert SERVICES["anytime"]["ulimits"]["nofile"] > 2 * Settings().max_connections


def test_clients_may_have_a_replica_hold_far_less_than_its_memory() -> None:
    limit = SERVICES["anytime"]["deploy"]["resources"]["limits"]["memory"]
    held = int(SERVICES["anytime"]["environment"]["ANYTIME_MAX_HELD_BYTES"])
    assert 4 * held <= int(limit.removesuffix("M")) * 1024**2


def test_grafana_knows_nobody_but_who_has_the_password() -> None:
    told = SERVICES["grafana"]["environment"]
    assert told["GF_AUTH_ANONYMOUS_ENABLED"] == told["GF_USERS_ALLOW_SIGN_UP"] == "false"
    assert told["GF_SECURITY_ADMIN_PASSWORD__FILE"] == f"/run/secrets/{SERVICES['grafana']['secrets'][0]}"


def test_prometheus_reads_every_replica_and_grafana_asks_prometheus() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = scraped["scrape_configs"]
    (looked_up,) = job["dns_sd_configs"]
    assert looked_up["names"] == ["anytime"]  # a name that has an address for each replica
    assert looked_up["port"] == int(SERVICES["anytime"]["environment"]["ANYTIME_METRICS_PORT"])
    assert set(SERVICES["prometheus"]["networks"]) & set(SERVICES["anytime"]["networks"]) == {"metrics"}
    (sources,) = (DEPLOY / "grafana" / "provisioning" / "datasources").iterdir()
    (source,) = yaml.safe_load(sources.read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert set(SERVICES["prometheus"]["networks"]) & set(SERVICES["grafana"]["networks"])
