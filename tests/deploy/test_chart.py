"""The rendered chart follows the usual rules for pods, secrets and networks of a Kubernetes cluster."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from control.serving.gateway.upstream import SILENCE_SECONDS
from control.serving.gateway.wire import WIRES
from tests.deploy.chart import RENDERED, ROOT, first_line

MANIFESTS: list[dict[str, Any]] = [part for part in yaml.safe_load_all(RENDERED.read_text()) if part]
KINDS = {
    "ServiceAccount", "Ingress", "NetworkPolicy", "ServiceMonitor", "Deployment", "Service", "PodDisruptionBudget",
    "HorizontalPodAutoscaler", "PrometheusRule", "ScaledObject", "Job",
}  # fmt: skip


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for manifest in MANIFESTS:
        if manifest["kind"] in ("Deployment", "Job"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]


def containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods():
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            yield f"{name}/{container['name']}", container


def serving_containers() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, pod in pods():
        if pod.get("restartPolicy") != "Never":
            yield from ((f"{name}/{container['name']}", container) for container in pod["containers"])


def environment(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = (part for part in MANIFESTS if (part["kind"], part["metadata"]["name"]) == (kind, name))
    return found


def test_the_rendered_chart_is_up_to_date() -> None:
    assert RENDERED.read_text().splitlines()[0] == first_line(), "run python -m tests.deploy.helm --write"


def test_the_chart_renders_every_kind_of_object() -> None:
    assert {manifest["kind"] for manifest in MANIFESTS} == KINDS


@pytest.mark.parametrize(("name", "pod"), [*pods()])
def test_pods_run_without_privileges(name: str, pod: dict[str, Any]) -> None:
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.parametrize(("name", "container"), [*serving_containers()])
def test_serving_containers_have_probes_and_limits(name: str, container: dict[str, Any]) -> None:
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    if container["name"] == "web":
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["lifecycle"]["preStop"], "a pod must not end while proxies still send requests to it"
    assert container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"]["cpu"]


@pytest.mark.parametrize(("name", "container"), [*containers()])
def test_secrets_are_references_and_only_migrations_connect_as_the_owner(name: str, container: dict[str, Any]) -> None:
    variables = environment(container)
    for variable in (
        "SLIPSTREAM_SECRET_KEY",
        "SLIPSTREAM_DATABASE_URL",
        "SLIPSTREAM_REDIS_URL",
        "AWS_SECRET_ACCESS_KEY",
    ):
        assert variables[variable]["secretKeyRef"]["name"] == "slipstream"
    key = variables["SLIPSTREAM_DATABASE_URL"]["secretKeyRef"]["key"]
    assert key == ("SLIPSTREAM_OWNER_DATABASE_URL" if name.endswith("/migrate") else "SLIPSTREAM_DATABASE_URL")


@pytest.mark.parametrize(("name", "container"), [*containers()])
def test_no_argument_of_a_process_refers_to_a_secret(name: str, container: dict[str, Any]) -> None:
    """Every process of the node can read the arguments of processes, and Kubernetes would replace `$(NAME)` in an
    argument by the variable's value."""
    hooks = [hook.get("exec", {}).get("command", []) for hook in container.get("lifecycle", {}).values()]
    words = [word for part in (container.get("command", []), container.get("args", []), *hooks) for word in part]
    secrets = {name for name, value in environment(container).items() if isinstance(value, dict)}
    assert len(secrets) >= 4
    assert [word for word in words if "$" in word or any(name in word for name in secrets)] == []


@pytest.mark.parametrize(("name", "pod"), [*pods()])
def test_a_pods_grace_period_exceeds_its_drain_time(name: str, pod: dict[str, Any]) -> None:
    # The seconds of the preStop hook (10, if there is one) plus those that the process needs to finish its work.
    drain_seconds = {"slipstream-web": 10 + 60, "slipstream-gateway": 10 + 600, "slipstream-endpoints": 120,
                     "slipstream-worker": 10 + 2}  # fmt: skip
    assert pod.get("terminationGracePeriodSeconds", 30) > drain_seconds.get(name, 0)


@pytest.mark.parametrize(("name", "pod"), [*pods()])
def test_every_mount_has_a_volume(name: str, pod: dict[str, Any]) -> None:
    volumes = {volume["name"] for volume in pod["volumes"]}
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        mounted = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounted.keys() <= volumes
        if "models" in mounted:
            assert mounted["models"]["readOnly"] is True


def test_each_service_and_disruption_budget_selects_one_deployment_and_the_monitor_selects_all_services() -> None:
    labels = [m["spec"]["template"]["metadata"]["labels"] for m in MANIFESTS if m["kind"] == "Deployment"]
    services = [m for m in MANIFESTS if m["kind"] == "Service"]
    for selector in (
        *(m["spec"]["selector"] for m in services),
        *(m["spec"]["selector"]["matchLabels"] for m in MANIFESTS if m["kind"] == "PodDisruptionBudget"),
    ):
        assert sum(selector.items() <= pod_labels.items() for pod_labels in labels) == 1
    (monitor,) = (m for m in MANIFESTS if m["kind"] == "ServiceMonitor")
    ports = {port["name"] for service in services for port in service["spec"]["ports"]}
    assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} == ports
    for service in services:
        assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


def test_the_ingress_routes_completions_to_the_gateway() -> None:
    (ingress,) = (m for m in MANIFESTS if m["kind"] == "Ingress")
    routes = {
        entry["path"]: entry["backend"]["service"]["name"] for entry in ingress["spec"]["rules"][0]["http"]["paths"]
    }
    assert {path for path, service in routes.items() if service == "slipstream-gateway"} == WIRES.keys()
    assert routes["/v1"] == "slipstream-web"
    assert not [path for path in routes if path in ("/", "/metrics", "/readyz")], "these paths must not be public"


def test_pods_cannot_reach_the_clouds_metadata_service() -> None:
    policy = manifest("NetworkPolicy", "slipstream")
    assert policy["spec"]["egress"][0]["to"][0]["ipBlock"]["except"] == ["169.254.169.254/32"]


@pytest.mark.parametrize(("name", "container"), [*containers()])
def test_an_upgrade_of_the_chart_need_not_restart_the_engines(name: str, container: dict[str, Any]) -> None:
    """The engines' pod restarts if any of its images changes, so `endpoints.tag` sets its images separately."""
    assert container["image"].endswith(":1.2.2" if name.startswith("slipstream-endpoints/") else ":1.2.3")


def test_during_an_upgrade_of_the_gateway_two_pods_answer_and_a_stopping_pod_finishes_its_streams() -> None:
    gateway = manifest("Deployment", "slipstream-gateway")["spec"]
    assert gateway["replicas"] >= 2
    assert gateway["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert manifest("PodDisruptionBudget", "slipstream-gateway")["spec"]["maxUnavailable"] == 1
    (container,) = gateway["template"]["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    proxy_seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    stream_seconds = int(environment(container)["UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN"])
    assert stream_seconds >= SILENCE_SECONDS
    assert gateway["template"]["spec"]["terminationGracePeriodSeconds"] >= proxy_seconds + stream_seconds + 10
    image = (ROOT / "deploy" / "docker" / "web.Dockerfile").read_text()
    assert "UVICORN_TIMEOUT_GRACEFUL_SHUTDOWN=60" in image
    assert "--timeout-graceful-shutdown" not in image, "the option would override the variable"


def test_only_gateways_can_reach_the_pod_of_the_engines() -> None:
    service = manifest("Service", "slipstream-endpoints")["spec"]
    assert service["clusterIP"] == "None", "the engines' ports vary, and only a pod's own address has all of them"
    hosts = {name: environment(container).get("SLIPSTREAM_ENGINE_HOST") for name, container in serving_containers()}
    assert {name for name, host in hosts.items() if host == "slipstream-endpoints"} == {
        "slipstream-gateway/web",
        "slipstream-endpoints/endpoints",
    }
    policy = manifest("NetworkPolicy", "slipstream-endpoints")["spec"]
    assert policy["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "endpoints"
    (rule,) = policy["ingress"]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "gateway"
