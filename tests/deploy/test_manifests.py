"""The Compose file and the manifests for Kubernetes follow their schemas, and agree with all that they name."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from anytime_service.app import create_app
from anytime_service.limits.tuning import TUNING
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.run import Server
from anytime_service.settings import Settings
from anytime_service.telemetry.metrics import Metrics
from deploy.project import DEPLOY, at, documents, environment, image_user, only, ran, routes, settings, stages, version
from guides import blocks_of
from system import program

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


KUBERNETES = DEPLOY / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
ADAPTER: dict[str, Any] = yaml.safe_load((KUBERNETES / "prometheus" / "adapter.yaml").read_text(encoding="utf-8"))
OLDEST = "1.30"

Manifest = dict[str, Any]


MANIFESTS: list[Manifest] = [each for name in KUSTOMIZATION["resources"] for each in documents(KUBERNETES / name)]
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")


def of_kind(kind: str) -> list[Manifest]:
    return [each for each in MANIFESTS if each["kind"] == kind]


def manifest_of(kind: str, name: str = "anytime") -> Manifest:
    """Return the manifest of a kind and name."""
    (manifest,) = (each for each in of_kind(kind) if each["metadata"]["name"] == name)
    return manifest


PODS: list[Manifest] = [each["spec"]["template"] for each in of_kind("Deployment")]
"""The pod template of each deployment."""


def selected(labels: Mapping[str, str]) -> list[Manifest]:
    """Return the templates whose pods have these labels."""
    return [pod for pod in PODS if labels.items() <= pod["metadata"]["labels"].items()]


def container(pod: Manifest) -> dict[str, Any]:
    (only_one,) = pod["spec"]["containers"]
    inner: dict[str, Any] = only_one
    return inner


def ports(pod: Manifest) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(pod)["ports"]}


OURS = manifest_of("Deployment")["spec"]["template"]
STORE = manifest_of("Deployment", "anytime-redis")["spec"]["template"]


@pytest.fixture(scope="module")
def schemas() -> Any:
    import kubernetes_validate  # noqa: PLC0415  (takes seconds to import)

    return kubernetes_validate


@every_manifest
@pytest.mark.parametrize("version", [OLDEST, None], ids=[OLDEST, "latest"])
def test_a_manifest_follows_the_schema(manifest: Manifest, version: str | None, schemas: Any) -> None:
    schemas.validate(manifest, version or schemas.latest_version(), strict=True)  # raises if it does not


def test_a_misspelt_field_is_detected(schemas: Any) -> None:
    broken = copy.deepcopy(manifest_of("Deployment"))
    probe = container(broken["spec"]["template"]).pop("readinessProbe")
    container(broken["spec"]["template"])["readynessProbe"] = probe
    with pytest.raises(schemas.ValidationError, match="readynessProbe"):
        schemas.validate(broken, OLDEST, strict=True)


def test_every_file_is_a_resource_and_kustomize_builds_all_in_the_namespace() -> None:
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    printed = ran(program("kubectl"), "kustomize", KUBERNETES)
    built = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(printed)}
    assert set(built) == {(each["kind"], each["metadata"]["name"]) for each in MANIFESTS}
    places = {each["metadata"].get("namespace") for (kind, _), each in built.items() if kind != "Namespace"}
    assert places == {KUSTOMIZATION["namespace"]} == {manifest_of("Namespace")["metadata"]["name"]}
    assert container(built["Deployment", "anytime"]["spec"]["template"])["image"] == f"anytime-linear:{version()}"


@every_manifest
def test_every_selector_selects_the_pods_of_one_deployment(manifest: Manifest) -> None:
    spec = manifest.get("spec", {})
    selector = spec.get("podSelector") or spec.get("selector") or {}
    labels = selector.get("matchLabels", selector)
    if manifest["kind"] in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        assert len(selected(labels)) == 1
    if manifest["kind"] == "Deployment":
        assert selected(labels) == [spec["template"]]
        for spread in spec["template"]["spec"].get("topologySpreadConstraints", ()):
            assert spread["labelSelector"]["matchLabels"] == labels


def test_services_use_ports_of_their_pods() -> None:
    for service in of_kind("Service"):
        (pod,) = selected(service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports(pod))


SECRETS = {name: f"/run/secrets/{SERVICES[name]['secrets'][0]}" for name in ("anytime", "grafana")}
OF_SERVICES = {
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


OF_OUR_POD = {
    "containers/0/envFrom": [{"configMapRef": {"name": "anytime"}}],
    "containers/0/startupProbe/httpGet": {"path": "/readyz", "port": "http"},
    "containers/0/readinessProbe/httpGet": {"path": "/readyz", "port": "http"},
    "containers/0/livenessProbe/httpGet": {"path": "/livez", "port": "http"},
    "containers/0/resources/requests/cpu": "1",
    "enableServiceLinks": False,
}
"""Of our pod: the event loop has a processor without a limit, which would delay deadlines. Links would set ANYTIME_PORT
to tcp://..., as there is a service of that name."""


STATED = [(SERVICES, *each) for each in OF_SERVICES.items()] + [(OURS["spec"], *each) for each in OF_OUR_POD.items()]


@pytest.mark.parametrize(("document", "path", "value"), STATED, ids=[*OF_SERVICES, *OF_OUR_POD])
def test_a_value_is_that_of_the_file_or_of_the_service_on_which_it_depends(
    document: dict[str, Any], path: str, value: Any
) -> None:
    assert at(document, path) == value


def test_a_pod_of_ours_has_no_limit_of_processors() -> None:
    assert set(container(OURS)["resources"]["limits"]) == {"memory"}


def test_ports_routes_and_variables_are_those_of_the_service() -> None:
    data, image = manifest_of("ConfigMap")["data"], stages()[1]
    assert ports(OURS)["http"] == int(environment(image)["ANYTIME_PORT"]) == int(only(image, "EXPOSE").argument)
    assert ports(OURS)["metrics"] == int(data["ANYTIME_METRICS_PORT"])
    assert {"/livez", "/readyz"} <= routes()
    assert set(data) <= settings()
    assert all(isinstance(value, str) for value in data.values())


def test_the_keys_are_a_file_of_a_secret_and_no_secret_is_shipped() -> None:
    (keys,) = (each for each in OURS["spec"]["volumes"] if "secret" in each)
    (mount,) = (each for each in container(OURS)["volumeMounts"] if each["name"] == keys["name"])
    assert "subPath" not in mount  # otherwise a changed key would not be visible
    assert str(Path(manifest_of("ConfigMap")["data"]["ANYTIME_API_KEYS_FILE"]).parent) == mount["mountPath"]
    assert not of_kind("Secret")
    how = f"kubectl -n anytime create secret generic {keys['secret']['secretName']} --from-file=keys="
    assert how in README


def test_the_pod_that_copies_models_in_the_guide_is_valid_and_allowed_in_the_namespace(schemas: Any) -> None:
    (text,) = re.findall(r"^apiVersion: v1\nkind: Pod$.*?(?=^END$)", README, re.MULTILINE | re.DOTALL)
    pod = yaml.safe_load(text)
    schemas.validate(pod, OLDEST, strict=True)
    (volume,) = pod["spec"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "anytime-models"}
    assert container(pod)["image"] == container(OURS)["image"]
    context = OURS["spec"]["securityContext"]
    assert pod["spec"]["securityContext"].items() <= context.items()
    assert {"runAsNonRoot", "fsGroup", "seccompProfile"} <= set(pod["spec"]["securityContext"])
    ours = container(OURS)["securityContext"]
    assert container(pod)["securityContext"] == {k: v for k, v in ours.items() if k != "readOnlyRootFilesystem"}


def test_mounts_are_volumes_and_volume_claims_exist() -> None:
    for pod in PODS:
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert {each["name"] for each in container(pod)["volumeMounts"]} == set(volumes)
    (claim,) = (each["persistentVolumeClaim"] for each in OURS["spec"]["volumes"] if "persistentVolumeClaim" in each)
    assert claim == {
        "claimName": manifest_of("PersistentVolumeClaim", "anytime-models")["metadata"]["name"],
        "readOnly": True,
    }
    (models,) = (each for each in container(OURS)["volumeMounts"] if each["name"] == "models")
    assert models == {"name": "models", "mountPath": only(stages()[1], "CMD").argv()[0], "readOnly": True}


def test_pods_have_no_unnecessary_privileges() -> None:
    for pod in PODS:
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        context = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert context.items() <= spec["securityContext"].items()
        assert container(pod)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert not [each for each in spec["volumes"] if "hostPath" in each]
    user = OURS["spec"]["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == image_user()
    labels = manifest_of("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_limit_of_client_values_is_far_below_the_memory_limit() -> None:
    limit = container(OURS)["resources"]["limits"]["memory"]
    limit_of_values = int(manifest_of("ConfigMap")["data"]["ANYTIME_MAX_HELD_BYTES"])
    assert 4 * limit_of_values <= int(limit.removesuffix("Mi")) * 1024**2


def test_the_grace_period_covers_the_pre_stop_pause_and_draining() -> None:
    server = Server(create_app(ModelRegistry.of([]), Settings()), Settings())
    drained = TUNING.linger_s + (server.config.timeout_graceful_shutdown or 0)
    pause = container(OURS)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause >= 5
    assert OURS["spec"]["terminationGracePeriodSeconds"] > pause + drained
    assert manifest_of("Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_autoscaler_and_the_disruption_budget_refer_to_the_deployment() -> None:
    target = manifest_of("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    deployment = manifest_of("Deployment")
    assert target == {"apiVersion": deployment["apiVersion"], "kind": "Deployment", "name": "anytime"}
    assert "replicas" not in deployment["spec"]  # otherwise applying it would reset the autoscaler
    min_replicas = manifest_of("HorizontalPodAutoscaler")["spec"]["minReplicas"]
    assert min_replicas > manifest_of("PodDisruptionBudget")["spec"]["maxUnavailable"]


def test_the_autoscaler_uses_metrics_of_the_service_that_the_adapter_exposes() -> None:
    measured = generate_latest(Metrics().registry).decode()
    adapted = set()
    for rule in ADAPTER["rules"]["custom"]:
        [name] = re.findall(r'__name__="(\w+)"', rule["seriesQuery"])
        assert re.search(rf"^# TYPE {name} ", measured, re.MULTILINE)
        adapted.add(re.sub(rule["name"]["matches"], rule["name"]["as"], name) if "name" in rule else name)
    metrics = [each["pods"] for each in manifest_of("HorizontalPodAutoscaler")["spec"]["metrics"]]
    targets = {each["metric"]["name"]: float(each["target"]["averageValue"]) for each in metrics}
    assert set(targets) == adapted
    # Pods are added before predictions are shed.
    assert targets["anytime_predicted_lateness_ms"] < Settings().max_lateness_ms


@pytest.mark.parametrize("rule", ADAPTER["rules"]["custom"], ids=lambda rule: rule["seriesQuery"])
def test_prometheus_accepts_the_queries_of_the_adapter(rule: dict[str, Any], tmp_path: Path) -> None:
    query: str = rule["metricsQuery"]
    [name] = re.findall(r'__name__="(\w+)"', rule["seriesQuery"])
    for place, text in (("Series", name), ("LabelMatchers", 'pod="a"'), ("GroupBy", "pod")):
        query = query.replace(f"<<.{place}>>", text)
    rules = {"groups": [{"name": "adapter", "rules": [{"record": "query", "expr": query}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    ran(program("promtool"), "check", "rules", tmp_path / "rules.yml")


def test_every_pod_has_a_network_policy_which_allows_only_its_ports() -> None:
    policies = [each["spec"]["podSelector"]["matchLabels"] for each in of_kind("NetworkPolicy")]
    assert all(any(pod in selected(labels) for labels in policies) for pod in PODS)
    for policy in of_kind("NetworkPolicy"):
        (pod,) = selected(policy["spec"]["podSelector"]["matchLabels"])
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        for rule in policy["spec"]["ingress"]:
            assert rule["from"]
            assert {port["port"] for port in rule["ports"]} <= set(ports(pod))
    to_store, to_names = manifest_of("NetworkPolicy")["spec"]["egress"]
    assert selected(to_store["to"][0]["podSelector"]["matchLabels"]) == [STORE]
    assert [port["port"] for port in to_store["ports"]] == [ports(STORE)["redis"]]
    assert {(port["protocol"], port["port"]) for port in to_names["ports"]} == {("UDP", 53), ("TCP", 53)}
    of_store = manifest_of("NetworkPolicy", "anytime-redis")["spec"]
    assert [selected(source["podSelector"]["matchLabels"]) for source in of_store["ingress"][0]["from"]] == [[OURS]]
    assert "egress" not in of_store


def test_the_session_store_is_the_shipped_redis() -> None:
    service = manifest_of("Service", "anytime-redis")
    (port,) = service["spec"]["ports"]
    store = manifest_of("ConfigMap")["data"]["ANYTIME_SESSION_STORE"]
    assert store == f"redis://{service['metadata']['name']}:{port['port']}/0"
    inner = container(STORE)
    assert (inner["image"], inner["args"]) == (SERVICES["redis"]["image"], SERVICES["redis"]["command"])


def test_the_guide_makes_a_rule_of_the_operator_with_every_alert(tmp_path: Path) -> None:
    (commands,) = (block.text for block in blocks_of(README) if "PrometheusRule" in block.text)
    (tmp_path / "deploy").symlink_to(DEPLOY)
    subprocess.run(["sh", "-ec", commands], cwd=tmp_path, check=True, timeout=60)
    (rule,) = documents(tmp_path / "alerts.yaml")
    (monitor,) = documents(KUBERNETES / "prometheus" / "servicemonitor.yaml")
    assert (rule["apiVersion"], rule["kind"]) == (monitor["apiVersion"], "PrometheusRule")
    assert rule["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
    assert rule["metadata"]["labels"].items() <= monitor["metadata"]["labels"].items()
    assert [rule["spec"]] == documents(DEPLOY / "prometheus" / "alerts.yml")


def test_the_processors_that_the_guide_requires_are_those_of_the_pods_and_of_a_rollout() -> None:
    requests = [container(pod)["resources"]["requests"]["cpu"] for pod in (OURS, STORE)]
    server, store = (int(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu) for cpu in requests)
    total = manifest_of("HorizontalPodAutoscaler")["spec"]["minReplicas"] * server + store
    surge = manifest_of("Deployment")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] * server
    words = (f"request {total:g} processors", f"have {total + surge:g} free")
    assert not [each for each in words if each not in README]


def test_the_monitor_scrapes_every_pod_through_the_headless_service() -> None:
    (monitor,) = documents(KUBERNETES / "prometheus" / "servicemonitor.yaml")
    labels = monitor["spec"]["selector"]["matchLabels"]
    (service,) = (each for each in of_kind("Service") if labels.items() <= each["metadata"]["labels"].items())
    assert service["spec"]["clusterIP"] == "None"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert monitor["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
