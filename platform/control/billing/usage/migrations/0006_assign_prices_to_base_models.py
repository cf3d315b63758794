"""Assigns each price, which earlier releases stored by name, to the shared base model of that name.

A price whose name no shared base model has stays without a base model, applies to nothing, and is printed.
"""

from django.apps.registry import Apps
from django.db import migrations
from django.db.backends.base.schema import BaseDatabaseSchemaEditor


def assign(apps: Apps, schema_editor: BaseDatabaseSchemaEditor) -> None:
    prices = apps.get_model("usage", "Price").objects
    shared = apps.get_model("catalog", "BaseModel").objects.filter(organization=None)
    ids = dict(shared.values_list("name", "pk")) | {"": ""}  # the empty name: the price of all other models
    for price in prices.filter(base_model_id=None):
        if price.model in ids:
            prices.filter(pk=price.pk).update(base_model_id=ids[price.model])
        else:
            print(  # noqa: T201  # `migrate` is run by an operator, who has to act on this
                f"\n  The price of {price.model!r} applies to nothing from now on: no shared base model has this name. "
                "Set the base model's price with price_set, and remove this one with price_remove."
            )


class Migration(migrations.Migration):

    dependencies = [
        ('usage', '0005_price_base_models'),
        ('catalog', '0004_describe_fields'),
    ]

    operations = [
        migrations.RunPython(assign, migrations.RunPython.noop),
    ]
