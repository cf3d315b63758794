"""Example objects and request bodies of quotes, for the tests that cover all routes."""

from control.workflows.quotes.models import Quote
from control.workflows.quotes.services import quote_create
from tests.control.world import Bodies, Body, Ids, World


def quote(world: World) -> Quote:
    return quote_create(organization=world.organization, dataset=world.counted_dataset, basis=Quote.Basis.PILOT)


IDS: Ids = {
    "quote_id": lambda world: world.quote.pk,
}
BODIES: Bodies = {
    "POST /v1/quotes": Body(lambda world: {"dataset_id": world.counted_dataset.pk}, {"dataset_id": "dataset_id"}),
    "PATCH /v1/quotes/{quote_id}": Body(lambda world: {"cap": 1.5}),
}
