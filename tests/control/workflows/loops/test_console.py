"""The console sets a loop with the form of a deployment's page, and shows the rounds with their figures and cost."""

import pytest

from control.serving.deployments.models import Deployment
from control.tenants.accounts.models import Organization
from control.tenants.audit.models import AuditEvent
from control.workflows.loops.models import Loop
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.operations.console.test_form_pages import button_path, submit_form
from tests.control.workflows.loops.helpers import advance_to, begin, drop_acceptance, make_deployment, spend

pytestmark = pytest.mark.django_db


@pytest.fixture
def deployment(organization: Organization) -> Deployment:
    return make_deployment(organization)


def test_the_form_of_a_deployments_page_sets_a_loop(deployment: Deployment) -> None:
    values = {
        "limits.monthly_budget": "12.5",
        "triggers.every_hours": "24",
        "recipe.hyperparameters": '{"epochs": 2}',
    }
    submit_form(operator_client(), button_path("deployments_deployment", deployment.pk, "retrain"), values)
    loop = Loop.objects.get()
    assert (loop.budget_nanousd, loop.triggers["every_hours"]) == (12_500_000_000, 24)
    assert loop.recipe["hyperparameters"] == {"epochs": 2}
    assert AuditEvent.objects.get().action == "loop.set"


def test_the_pages_show_the_old_and_new_acceptance_the_cost_and_the_switch(deployment: Deployment) -> None:
    made = advance_to("rolling_out", begin(deployment), new=2.437, old=1.816)
    spend(made, 3.25)
    operator = operator_client()
    loop = Loop.objects.get()
    for path in (change_path("loops_loop", loop.pk), change_path("loops_loopround", made.pk)):
        html = page(operator, path)
        assert "2.437" in html
        assert "1.816" in html
        assert "3.25" in html
    press(operator, "loops_loop", loop.pk, "switch_off")
    made.refresh_from_db()
    assert made.status == "stopped"
    press(operator, "loops_loop", loop.pk, "delete")
    assert not Loop.objects.exists()
    assert "The loop was switched off." in page(operator, change_path("loops_loopround", made.pk))


def test_the_page_of_a_deployment_says_that_the_acceptance_has_dropped(deployment: Deployment) -> None:
    operator, path = operator_client(), change_path("deployments_deployment", deployment.pk)
    assert "The acceptance has dropped" not in page(operator, path)
    watch = drop_acceptance(deployment)
    watch.mean, watch.current = 2.513, 1.723
    watch.save()
    html = page(operator, path)
    assert "The acceptance has dropped" in html
    assert "1.723" in html
    assert "2.513" in html
