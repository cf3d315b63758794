"""Operators set prices by base model. A migration assigns prices that earlier releases stored by name."""

from importlib import import_module

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command

from control.billing.usage.models import Price
from control.billing.usage.selectors import price_of
from tests.control.factories import make_base_model, make_organization


def test_operators_set_prices_in_dollars_per_million_tokens(db: None) -> None:
    model = make_base_model("m")
    call_command("price_set", "m", "0.15", "0.6", batch_percent=40)
    call_command("price_set", model.pk, "0.1", "0.6")

    price = Price.objects.get()
    assert (price.base_model_id, price.model) == (model.pk, "m")
    assert (price.input_nanousd, price.output_nanousd, price.batch_percent) == (100, 600, 50)
    for bad in ("-1", "0.0001"):
        with pytest.raises(CommandError):
            call_command("price_set", "m", "0.1", bad)


def test_a_price_cannot_be_set_by_the_name_of_an_organizations_own_model(db: None) -> None:
    make_base_model("own", make_organization())

    with pytest.raises(CommandError):
        call_command("price_set", "own", "1", "1")  # several organizations may have a model of this name: use its id

    assert not Price.objects.exists()


def test_a_removed_price_no_longer_applies(db: None) -> None:
    model = make_base_model("m")
    call_command("price_set", "m", "0.1", "0.6")

    call_command("price_remove", model.pk)

    assert price_of(model.pk).input_nanousd == 0
    with pytest.raises(CommandError):
        call_command("price_remove", model.pk)


def test_the_migration_assigns_prices_to_shared_base_models_and_prints_the_unassigned_prices(
    db: None, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = make_base_model("shared")
    make_base_model("own", make_organization())
    for name in ("", "shared", "own", "endpoint"):
        Price.objects.create(model=name, input_nanousd=len(name), output_nanousd=1)

    migration = import_module("control.billing.usage.migrations.0006_assign_prices_to_base_models")
    migration.assign(apps, None)

    assigned = dict(Price.objects.values_list("model", "base_model_id"))
    assert assigned == {"": "", "shared": shared.pk, "own": None, "endpoint": None}
    printed = capsys.readouterr().out
    assert "'own'" in printed
    assert "'endpoint'" in printed
    assert "'shared'" not in printed
    assert price_of(shared.pk).input_nanousd == len("shared")


def test_a_price_set_by_base_model_replaces_the_unassigned_price_of_the_models_name(db: None) -> None:
    model = make_base_model("own", make_organization())
    Price.objects.create(model="own", input_nanousd=1, output_nanousd=1)
    Price.objects.create(model="endpoint", input_nanousd=1, output_nanousd=1)

    call_command("price_set", model.pk, "0.1", "0.1")

    assert set(Price.objects.values_list("model", "base_model_id")) == {("own", model.pk), ("endpoint", None)}
