"""Distillations, adapters and rollouts in the console."""

import pytest
from django.test import Client

from control.models.adapters.models import Adapter
from control.queue.jobs.models import Job
from control.serving.rollouts.models import Rollout
from control.tenants.accounts.models import Organization
from tests.control.operations.console.support import change_path, operator_client, page, press
from tests.control.world import World


@pytest.fixture
def operator(db: None) -> Client:
    return operator_client()


def test_a_distillation_is_shown_and_cancelled(operator: Client, organization: Organization) -> None:
    made = World(organization).distillation

    assert made.batch_id in page(operator, change_path("distillations_distillation", made.pk))
    press(operator, "distillations_distillation", made.pk, "cancel")
    assert Job.objects.get(pk=made.batch.job_id).cancel_requested_at is not None


def test_an_adapter_that_is_served_stays(operator: Client, organization: Organization) -> None:
    world = World(organization)
    world.deployment.adapters.add(world.adapter)

    assert world.deployment.name in page(operator, change_path("adapters_adapter", world.adapter.pk))
    press(operator, "adapters_adapter", world.adapter.pk, "remove")
    assert Adapter.objects.exists()
    world.deployment.adapters.clear()
    press(operator, "adapters_adapter", world.adapter.pk, "remove")
    assert not Adapter.objects.exists()


def test_a_rollout_shows_on_what_it_was_decided(operator: Client, organization: Organization) -> None:
    rollout = World(organization).rollout
    figures = {"num_requests": 1234, "num_failed": 0, "error_rate": 0.0, "acceptance_length": 2.5}
    Rollout.objects.update(figures={"canary": figures, "stable": figures})

    assert "1,234" in page(operator, change_path("rollouts_rollout", rollout.pk))
    press(operator, "rollouts_rollout", rollout.pk, "cancel")
    rollout.refresh_from_db()
    assert rollout.status == Rollout.Status.ROLLED_BACK
    assert "It was cancelled." in page(operator, change_path("rollouts_rollout", rollout.pk))
