"""The console in a real browser, 1280 and 390 pixels wide: no content overflows or is squeezed, and no error is logged.

SCREENSHOTS=DIR saves a screenshot of every page.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from pytest_django.live_server_helper import LiveServer
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.ui import WebDriverWait

from control.core.settings.config import get_config
from control.queue.jobs.models import Job
from control.queue.jobs.services import (
    job_claim_next,
    job_commit_checkpoint,
    job_metrics,
    job_progress,
    job_submit,
    worker_beat,
)
from control.queue.jobs.state import Claim
from tests.control.factories import make_key, make_organization
from tests.control.operations.console.support import change_path, operator_client
from tests.control.serving.deployments.support import make_speculator
from tests.control.world import World

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="this machine has no chromium and chromedriver"),
    pytest.mark.django_db(transaction=True),
]
WIDTHS = (1280, 390)
OVERFLOW = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Returns the texts of cells that are much higher than wide. A line of such a cell has room for a letter or two.
SQUEEZED = """
return [...document.querySelectorAll("td, th")].filter((cell) => cell.offsetHeight > 4 * cell.offsetWidth)
    .map((cell) => cell.innerText.slice(0, 40)).filter((text) => text.length > 1)
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    options = ChromeOptions()
    assert CHROMIUM is not None
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def claim() -> Claim:
    """The claim of a training job in progress, with metrics and a log."""
    worker_beat(worker="jobs-1@gpu-host", role="jobs")
    job_submit(organization=make_organization("Acme Research"), kind="training", params={"kind": "eagle3"})
    claim = job_claim_next(worker="jobs-1@gpu-host")
    assert claim is not None
    for step in range(1, 13):
        loss = 3.0 / step + 0.5
        figures = {"loss": loss, "validation_loss": loss + 0.1, "acceptance_length": 3 - loss / 2}
        job_metrics(claim=claim, metrics=figures)
        job_commit_checkpoint(claim=claim, storage_prefix="c", step=50 * step)
    job_progress(claim=claim, done=600, total=2000, unit="steps")
    log = get_config().data_dir / "logs" / "jobs" / f"{claim.job_id}.{claim.fence}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("a line of the log that is rather long, as lines of logs are, and is wrapped where it must be\n" * 9)
    return claim


def compared_speculators(world: World) -> list[str]:
    """Makes speculators with reports, and returns their ids."""
    report: dict[str, object] = {
        "acceptance_length": 2.31,
        "speedup": 1.72,
        "outputs_equal": 200,
        "tokens_per_second_speculative": 64.2,
    }
    report |= {"model": "a-model-with-a-name", "acceptance_rate_per_position_without_loops": [0.61, 0.27, 0.11]}
    return [
        make_speculator(world.base_model, world.organization, name=f"a-rather-long-name-{n}", report=report).pk
        for n in range(4)
    ]


def page_paths(claim: Claim) -> dict[str, str]:
    """Maps names of screenshots to the paths of pages, one page of every kind."""
    world = World(make_organization("Globex"))
    make_key(world.organization)
    job = Job.objects.get(pk=claim.job_id)
    compared = compared_speculators(world)
    rows = {
        "job": ("jobs_job", job.pk),
        "organization": ("accounts_organization", world.organization.pk),
        "pipeline": ("pipelines_pipeline", world.pipeline.pk),
        "deployment": ("deployments_deployment", world.deployment.pk),
        "speculator": ("catalog_speculator", world.speculator.pk),
        "report": ("catalog_speculator", compared[0]),
        "delivery": ("webhooks_webhookdelivery", world.delivery.pk),
        "webhook": ("webhooks_webhookendpoint", world.delivery.endpoint_id),
        "evaluation": ("evaluations_evaluation", World(make_organization("Initech")).evaluation.pk),
        "dataset": ("datasets_dataset", world.dataset.pk),
        "loop": ("loops_loop", world.loop.pk),
        "round": ("loops_loopround", world.loop_round.pk),
    }
    lists = (
        "jobs_job",
        "evaluations_evaluation",
        "batches_batch",
        "accounts_organization",
        "webhooks_webhookdelivery",
        "audit_auditevent",
    )
    models_with_add_form = ("pipelines_pipeline", "deployments_deployment", "files_file")
    return {
        "overview": reverse("admin:index"),
        "queue": reverse("queue"),
        "pool": reverse("pool"),
        "lineage": reverse("lineage", args=[world.speculator.pk]),
        "compare": f"{reverse('speculators-compare')}?ids={','.join(compared)}",
        "limits": f"{reverse('admin:tenancy_limits_add')}?organization={world.organization.pk}",
        "form-choose-organization": reverse("admin:pipelines_pipeline_add"),
        **{
            f"form-{model}": f"{reverse(f'admin:{model}_add')}?organization={world.organization.pk}"
            for model in models_with_add_form
        },
        "form-change": reverse("admin:deployments_deployment_change_served", args=[quote(world.deployment.pk)]),
        **{f"list-{model}": reverse(f"admin:{model}_changelist") for model in lists},
        **{name: change_path(model, pk) for name, (model, pk) in rows.items()},
    }


def sign_in(browser: Chrome, server: LiveServer, client: Client) -> None:
    browser.get(f"{server.url}{reverse('admin:login')}")  # a cookie can be set only on a page of its site
    browser.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})


def resize(browser: Chrome, width: int) -> None:
    """Sets the viewport, because a browser window cannot be narrower than 500 pixels."""
    metrics = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def save_screenshot(browser: Chrome, name: str) -> None:
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(f"{folder}/{name}.png")


def messages_of(browser: Chrome) -> list[object]:
    """Messages of the browser's console since the last call."""
    return list(browser.get_log("browser"))  # type: ignore[no-untyped-call]  # selenium's


def test_every_page_fits_into_the_viewport_and_logs_no_error(
    browser: Chrome, live_server: LiveServer, claim: Claim
) -> None:
    sign_in(browser, live_server, operator_client())
    problems = {}
    for name, path in page_paths(claim).items():
        for width in WIDTHS:
            resize(browser, width)
            browser.get(f"{live_server.url}{path}")
            save_screenshot(browser, f"{name}-{width}")
            overflow, logged = browser.execute_script(OVERFLOW), messages_of(browser)
            squeezed = browser.execute_script(SQUEEZED)
            if overflow > 0 or logged or squeezed:
                problems[f"{name} at {width}"] = (overflow, logged, squeezed)
    assert problems == {}


def test_a_jobs_page_follows_its_progress_without_a_reload(
    browser: Chrome, live_server: LiveServer, claim: Claim
) -> None:
    sign_in(browser, live_server, operator_client())
    browser.get(f"{live_server.url}/admin/jobs/job/{quote(claim.job_id)}/change/")
    browser.execute_script("window.stayed = true")  # a reload would delete the variable
    assert "600 / 2000 steps" in browser.page_source

    job_progress(claim=claim, done=700, total=2000, unit="steps")

    WebDriverWait(browser, 20).until(lambda driver: "700 / 2000 steps" in driver.page_source)
    assert browser.execute_script("return window.stayed")


def test_the_reference_of_the_api_lists_its_operations_and_logs_no_error(
    browser: Chrome, live_server: LiveServer
) -> None:
    browser.get(f"{live_server.url}/docs#/deployments")
    WebDriverWait(browser, 20).until(lambda driver: "Create a deployment" in driver.page_source)
    for width in WIDTHS:
        resize(browser, width)
        save_screenshot(browser, f"reference-{width}")
        assert browser.execute_script(OVERFLOW) <= 0
    assert messages_of(browser) == []


def test_a_page_loads_and_sends_nothing_to_other_origins(browser: Chrome, live_server: LiveServer) -> None:
    """The other origin is the same server under another host name. Only the page's content security policy can block
    requests to it."""
    sign_in(browser, live_server, operator_client())
    browser.get(f"{live_server.url}{reverse('admin:index')}")
    messages_of(browser)
    other = live_server.url.replace("localhost", "127.0.0.1")
    assert other != live_server.url

    blocked = browser.execute_async_script(
        """
        const [other, done] = arguments, blocked = []
        document.addEventListener("securitypolicyviolation", (event) => {
            blocked.push(event.effectiveDirective)
            if (blocked.length === 3) done(blocked.sort())
        })
        document.head.append(Object.assign(document.createElement("script"), {src: other + "/static/any.js"}))
        document.body.append(Object.assign(document.createElement("img"), {src: other + "/static/any.png"}))
        fetch(other + "/livez").catch(() => {})
        """,
        other,
    )

    assert blocked == ["connect-src", "img-src", "script-src-elem"]
    messages_of(browser)
