"""The manifests for Kubernetes: as its own schemas have them, and true of the service and of each other."""

from __future__ import annotations

import copy
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client import generate_latest

from anytime_service.app import create_app
from anytime_service.http.exchange import LINGER_S
from anytime_service.models.registry import ModelRegistry
from anytime_service.server.run import build_server
from anytime_service.settings import Settings
from anytime_service.telemetry.metrics import Metrics
from deploy.dockerfile import environment, only, stages
from deploy.named import DEPLOY, documents, image_user, routes, settings, version
from system import program

FOLDER = DEPLOY / "kubernetes"
KUSTOMIZATION: dict[str, Any] = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
ADAPTER: dict[str, Any] = yaml.safe_load((FOLDER / "prometheus" / "adapter.yaml").read_text(encoding="utf-8"))
OLDEST = "1.30"

Manifest = dict[str, Any]


def manifests() -> list[Manifest]:
    return [each for name in KUSTOMIZATION["resources"] for each in documents(FOLDER / name)]


MANIFESTS = manifests()
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda m: f"{m['kind']}-{m['metadata']['name']}")


def found(kind: str, name: str = "anytime") -> Manifest:
    """The manifest of a kind and name."""
    (manifest,) = (each for each in MANIFESTS if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return manifest


def pods() -> Iterator[Manifest]:
    """Template of the pods of each deployment."""
    for each in MANIFESTS:
        if each["kind"] == "Deployment":
            yield each["spec"]["template"]


def selected(labels: Mapping[str, str]) -> list[Manifest]:
    """Templates whose pods have these labels."""
    return [pod for pod in pods() if labels.items() <= pod["metadata"]["labels"].items()]


def container(pod: Manifest) -> dict[str, Any]:
    (only_one,) = pod["spec"]["containers"]
    told: dict[str, Any] = only_one
    return told


def ports(pod: Manifest) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in container(pod)["ports"]}


OURS = found("Deployment")["spec"]["template"]


@every_manifest
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_a_manifest_is_as_kubernetes_has_it(manifest: Manifest, version: str) -> None:
    kubernetes_validate.validate(manifest, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    broken = copy.deepcopy(found("Deployment"))
    probe = container(broken["spec"]["template"]).pop("readinessProbe")
    container(broken["spec"]["template"])["readynessProbe"] = probe
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        kubernetes_validate.validate(broken, OLDEST, strict=True)


def test_every_file_is_a_resource_and_kustomize_builds_them_all_in_the_namespace() -> None:
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*KUSTOMIZATION["resources"], "kustomization.yaml"}
    command = [program("kubectl"), "kustomize", str(FOLDER)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    built = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    assert set(built) == {(each["kind"], each["metadata"]["name"]) for each in MANIFESTS}
    places = {each["metadata"].get("namespace") for (kind, _), each in built.items() if kind != "Namespace"}
    assert places == {KUSTOMIZATION["namespace"]} == {found("Namespace")["metadata"]["name"]}
    assert container(built["Deployment", "anytime"]["spec"]["template"])["image"] == f"anytime-linear:{version()}"


@every_manifest
def test_everything_that_selects_pods_selects_those_of_one_deployment(manifest: Manifest) -> None:
    spec = manifest.get("spec", {})
    selector = spec.get("podSelector") or spec.get("selector") or {}
    labels = selector.get("matchLabels", selector)
    if manifest["kind"] in ("Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"):
        assert len(selected(labels)) == 1
    if manifest["kind"] == "Deployment":
        assert selected(labels) == [spec["template"]]
        for spread in spec["template"]["spec"].get("topologySpreadConstraints", ()):
            assert spread["labelSelector"]["matchLabels"] == labels


def test_services_name_ports_that_their_pods_have() -> None:
    for service in (each for each in MANIFESTS if each["kind"] == "Service"):
        (pod,) = selected(service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(ports(pod))


def test_the_service_listens_on_the_ports_that_are_told() -> None:
    assert ports(OURS)["http"] == int(environment(stages()[1])["ANYTIME_PORT"]) == int(only(stages()[1], "EXPOSE").rest)
    assert ports(OURS)["metrics"] == int(found("ConfigMap")["data"]["ANYTIME_METRICS_PORT"])


@pytest.mark.parametrize("probe", ["startupProbe", "readinessProbe", "livenessProbe"])
def test_probes_ask_routes_of_the_service(probe: str) -> None:
    asked = container(OURS)[probe]["httpGet"]
    assert asked["path"] in routes()
    assert asked["port"] == "http"
    assert asked["path"] == ("/livez" if probe == "livenessProbe" else "/readyz")


def test_every_variable_is_a_setting_and_no_service_is_told_as_one() -> None:
    data = found("ConfigMap")["data"]
    assert set(data) <= settings()
    assert all(isinstance(value, str) for value in data.values())
    assert container(OURS)["envFrom"] == [{"configMapRef": {"name": "anytime"}}]
    # Links would set ANYTIME_PORT to tcp://..., as there is a service of that name.
    assert OURS["spec"]["enableServiceLinks"] is False


def test_the_keys_are_a_file_of_a_secret_and_no_secret_is_shipped() -> None:
    (keys,) = (each for each in OURS["spec"]["volumes"] if "secret" in each)
    (mount,) = (each for each in container(OURS)["volumeMounts"] if each["name"] == keys["name"])
    assert "subPath" not in mount  # or a key that changes would not be seen
    assert str(Path(found("ConfigMap")["data"]["ANYTIME_API_KEYS_FILE"]).parent) == mount["mountPath"]
    assert not [each for each in MANIFESTS if each["kind"] == "Secret"]
    how = f"kubectl -n anytime create secret generic {keys['secret']['secretName']} --from-file=keys="
    assert how in (DEPLOY / "README.md").read_text(encoding="utf-8")


def test_what_is_mounted_is_a_volume_and_what_a_volume_claims_is_there() -> None:
    for pod in pods():
        volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
        assert {each["name"] for each in container(pod)["volumeMounts"]} == set(volumes)
    (claim,) = (each["persistentVolumeClaim"] for each in OURS["spec"]["volumes"] if "persistentVolumeClaim" in each)
    assert claim == {
        "claimName": found("PersistentVolumeClaim", "anytime-models")["metadata"]["name"],
        "readOnly": True,
    }
    (models,) = (each for each in container(OURS)["volumeMounts"] if each["name"] == "models")
    assert models == {"name": "models", "mountPath": only(stages()[1], "CMD").argv()[0], "readOnly": True}


def test_pods_may_do_nothing_that_they_need_not() -> None:
    for pod in pods():
        spec, inner = pod["spec"], container(pod)["securityContext"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert inner == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert not [each for each in spec["volumes"] if "hostPath" in each]
    user = OURS["spec"]["securityContext"]
    assert f"{user['runAsUser']}:{user['runAsGroup']}" == image_user()
    labels = found("Namespace")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_a_pod_has_one_processor_as_the_server_has_one_loop_and_is_never_held_back() -> None:
    told = container(OURS)["resources"]
    assert told["requests"]["cpu"] == "1"
    assert "cpu" not in told["limits"]
    assert {"memory"} == set(told["limits"])


def test_clients_may_have_a_pod_hold_far_less_than_its_memory() -> None:
    limit = container(OURS)["resources"]["limits"]["memory"]
    held = int(found("ConfigMap")["data"]["ANYTIME_MAX_HELD_BYTES"])
    assert 4 * held <= int(limit.removesuffix("Mi")) * 1024**2


def test_a_pod_is_given_the_time_that_draining_takes_after_nobody_sends_any_more() -> None:
    server = build_server(create_app(ModelRegistry.of([]), Settings()), Settings())
    drained = LINGER_S + (server.config.timeout_graceful_shutdown or 0)
    pause = container(OURS)["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pause >= 5
    assert OURS["spec"]["terminationGracePeriodSeconds"] > pause + drained
    assert found("Deployment")["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


def test_the_autoscaler_and_the_budget_are_of_the_deployment() -> None:
    target = found("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    deployment = found("Deployment")
    assert target == {"apiVersion": deployment["apiVersion"], "kind": "Deployment", "name": "anytime"}
    assert "replicas" not in deployment["spec"]  # or applying it would undo what the autoscaler did
    least = found("HorizontalPodAutoscaler")["spec"]["minReplicas"]
    assert least > found("PodDisruptionBudget")["spec"]["maxUnavailable"]


def test_the_autoscaler_reads_what_the_service_measures_and_the_adapter_offers() -> None:
    measured = generate_latest(Metrics().registry).decode()
    offered = set()
    for rule in ADAPTER["rules"]["custom"]:
        [name] = re.findall(r'__name__="(\w+)"', rule["seriesQuery"])
        assert re.search(rf"^# TYPE {name} ", measured, re.MULTILINE)
        offered.add(re.sub(rule["name"]["matches"], rule["name"]["as"], name) if "name" in rule else name)
    metrics = [each["pods"] for each in found("HorizontalPodAutoscaler")["spec"]["metrics"]]
    targets = {each["metric"]["name"]: float(each["target"]["averageValue"]) for each in metrics}
    assert set(targets) == offered
    # Pods are added before predictions are shed.
    assert targets["anytime_predicted_lateness_ms"] < Settings().max_lateness_ms


@pytest.mark.parametrize("rule", ADAPTER["rules"]["custom"], ids=lambda rule: rule["seriesQuery"])
def test_prometheus_can_read_what_the_adapter_asks(rule: dict[str, Any], tmp_path: Path) -> None:
    query: str = rule["metricsQuery"]
    [name] = re.findall(r'__name__="(\w+)"', rule["seriesQuery"])
    for place, text in (("Series", name), ("LabelMatchers", 'pod="a"'), ("GroupBy", "pod")):
        query = query.replace(f"<<.{place}>>", text)
    rules = {"groups": [{"name": "adapter", "rules": [{"record": "asked", "expr": query}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    command = [program("promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_policies_name_ports_that_pods_have_and_let_nothing_else_in_or_out() -> None:
    store = found("Deployment", "anytime-redis")["spec"]["template"]
    for policy in (each for each in MANIFESTS if each["kind"] == "NetworkPolicy"):
        (pod,) = selected(policy["spec"]["podSelector"]["matchLabels"])
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        for rule in policy["spec"]["ingress"]:
            assert rule["from"]
            assert {port["port"] for port in rule["ports"]} <= set(ports(pod))
    to_store, to_names = found("NetworkPolicy")["spec"]["egress"]
    assert selected(to_store["to"][0]["podSelector"]["matchLabels"]) == [store]
    assert [port["port"] for port in to_store["ports"]] == [ports(store)["redis"]]
    assert {(port["protocol"], port["port"]) for port in to_names["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert "egress" not in found("NetworkPolicy", "anytime-redis")["spec"]


def test_every_pod_is_under_a_policy() -> None:
    policies = [each["spec"]["podSelector"]["matchLabels"] for each in MANIFESTS if each["kind"] == "NetworkPolicy"]
    assert all(any(pod in selected(labels) for labels in policies) for pod in pods())


def test_the_session_store_is_the_redis_beside_it() -> None:
    service = found("Service", "anytime-redis")
    (port,) = service["spec"]["ports"]
    store = found("ConfigMap")["data"]["ANYTIME_SESSION_STORE"]
    assert store == f"redis://{service['metadata']['name']}:{port['port']}/0"
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))["services"]["redis"]
    inner = container(found("Deployment", "anytime-redis")["spec"]["template"])
    assert (inner["image"], inner["args"]) == (compose["image"], compose["command"])


def test_the_monitor_reads_the_measures_of_every_pod_by_the_service_that_has_no_address() -> None:
    (monitor,) = documents(FOLDER / "prometheus" / "servicemonitor.yaml")
    labels = monitor["spec"]["selector"]["matchLabels"]
    services = [each for each in MANIFESTS if each["kind"] == "Service"]
    (service,) = (each for each in services if labels.items() <= each["metadata"]["labels"].items())
    assert service["spec"]["clusterIP"] == "None"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert monitor["metadata"]["namespace"] == KUSTOMIZATION["namespace"]
