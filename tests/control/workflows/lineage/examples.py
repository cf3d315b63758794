"""Example ids of lineage, for the tests that cover all routes."""

from tests.control.world import Ids

IDS: Ids = {"object_id": lambda world: world.batch.pk}
