"""Example objects and request bodies of datasets, for the tests that cover all routes."""

from control.workflows.datasets.models import Dataset
from control.workflows.datasets.services import dataset_create
from tests.control.world import Bodies, Body, Ids, World


def dataset(world: World) -> Dataset:
    return dataset_create(organization=world.organization, file=world.file)


def counted_dataset(world: World) -> Dataset:
    """A dataset with token counts, as if the model's tokenizer had been present."""
    made = dataset_create(organization=world.organization, file=world.file, base_model=world.base_model)
    Dataset.objects.filter(pk=made.pk).update(num_tokens=1000)
    made.refresh_from_db()
    return made


IDS: Ids = {
    "dataset_id": lambda world: world.dataset.pk,
}
BODIES: Bodies = {
    "POST /v1/datasets": Body(
        lambda world: {"file_id": world.file.pk, "name": "prompts"}, {"file_id": "file_id", "model": "name"}
    ),
    "POST /v1/datasets/{dataset_id}/splits": Body(lambda world: {"shares": {"train": 1.0}, "seed": 3}),
    "POST /v1/datasets/{dataset_id}/filter": Body(lambda world: {"max_characters": 10_000}),
    "POST /v1/datasets/mix": Body(lambda world: {"sources": [{"dataset_id": world.dataset.pk, "weight": 2.0}]}),
}
