"""The chat on a deployment's page in a real browser, with the console and the gateway in a real server.

SCREENSHOTS=DIR saves screenshots of the chat.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from control.billing.usage.models import UsageRecord
from control.core.storage.backends import get_storage
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_stop
from control.serving.deployments.supervisor import Supervisor
from control.tenants.accounts.models import Organization
from tests.control.operations.console.support import change_path
from tests.control.operations.console.test_browser import (
    CHROMIUM,
    DRIVER,
    OVERFLOW,
    messages_of,
    resize,
    save_screenshot,
)
from tests.control.operations.console.test_browser import browser as browser
from tests.control.operations.console.test_members import sign_in
from tests.control.serving.deployments.support import (
    State,
    make_deployment,
    make_model_folder,
    make_served_model,
    make_speculator,
    tick_until_state,
)
from tests.control.serving.gateway.conftest import base_url as base_url
from tests.control.serving.gateway.conftest import caller as caller
from tests.control.serving.gateway.conftest import supervisor as supervisor

pytestmark = [
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="this machine has no chromium and chromedriver"),
    pytest.mark.django_db(transaction=True),
    pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume"),  # WhiteNoise's files under ASGI
]


@pytest.fixture
def speculative(supervisor: Supervisor, caller: Organization, tmp_path: Path) -> Deployment:
    """A ready deployment with a speculator, whose fake engine answers with one accepted and one sampled token."""
    get_storage().put_folder("speculators/one", make_model_folder(tmp_path / "artifact"))
    model = make_served_model(tmp_path / "model")
    row = make_deployment(model, caller, "fast", speculator=make_speculator(model, caller))
    tick_until_state(supervisor, row, State.READY)
    return row


@pytest.fixture
def chat(browser: Chrome, base_url: str, caller: Organization, speculative: Deployment) -> Iterator[Chrome]:
    """The page of the deployment, as a member sees it."""
    server, client = base_url.removesuffix("/v1"), sign_in(caller, "member")
    browser.get(f"{server}/health")  # a cookie can be set only on a page of its site
    browser.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})
    browser.get(f"{server}{change_path('deployments_deployment', speculative.pk)}")
    messages_of(browser)  # of the first page, which has no icon
    yield browser
    browser.get("about:blank")


def say(browser: Chrome, text: str) -> None:
    browser.find_element(By.ID, "chat-message").send_keys(text, Keys.ENTER)


def wait_for(browser: Chrome, text: str) -> None:
    def is_shown(driver: Chrome) -> bool:
        return text in driver.find_element(By.CSS_SELECTOR, "[data-chat]").text

    WebDriverWait(browser, 10).until(is_shown)


def test_an_answer_streams_in_with_its_accepted_tokens_marked_and_its_figures(chat: Chrome) -> None:
    say(chat, "hello")

    wait_for(chat, "seconds to the first token")
    answer = chat.find_element(By.CSS_SELECTOR, ".console-example .console-answer")
    marks = answer.find_elements(By.CSS_SELECTOR, "mark.console-accepted")
    assert answer.get_attribute("textContent") == "token0 token1 "
    assert [mark.get_attribute("textContent") for mark in marks] == ["token0 "]
    plain = answer.value_of_css_property("background-color")
    assert marks[0].value_of_css_property("background-color") != plain
    facts = chat.find_element(By.CSS_SELECTOR, ".console-example .console-note").text
    assert facts.startswith("2 tokens, ")
    assert "2 tokens per verification pass" in facts
    for width in (1400, 390):
        resize(chat, width)
        for theme in ("light", "dark"):
            chat.execute_script("document.documentElement.classList.toggle('dark', arguments[0])", theme == "dark")
            chat.execute_script("document.querySelector('[data-chat]').scrollIntoView({block: 'center'})")
            save_screenshot(chat, f"chat-{theme}-{width}")
        assert chat.execute_script(OVERFLOW) <= 0
    assert messages_of(chat) == []
    WebDriverWait(chat, 10).until(lambda _: UsageRecord.objects.filter(model="fast", output_tokens=2).exists())


def test_a_stopped_answer_keeps_its_text_and_ends_the_engines_work(chat: Chrome, tmp_path: Path) -> None:
    say(chat, "linger")
    wait_for(chat, "token1")

    chat.find_element(By.CSS_SELECTOR, "[data-chat-stop]").click()

    wait_for(chat, "stopped")
    WebDriverWait(chat, 10).until(lambda _: (tmp_path / "model" / "hung_up").exists())
    assert "token0 token1" in chat.find_element(By.CSS_SELECTOR, ".console-answer").text


def test_a_message_to_a_stopped_deployment_is_explained_and_can_be_sent_again(
    chat: Chrome, speculative: Deployment
) -> None:
    deployment_stop(deployment=speculative)
    Deployment.objects.update(state=State.STOPPED)

    say(chat, "hello")

    wait_for(chat, "The deployment 'fast' is stopped.")
    assert chat.find_element(By.ID, "chat-message").get_attribute("value") == "hello"
    assert chat.find_elements(By.CSS_SELECTOR, "[data-chat-log] figure") == []
