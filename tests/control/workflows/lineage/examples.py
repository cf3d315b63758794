"""Example ids for the tests that cover all routes: lineage."""

from tests.control.world import Ids

IDS: Ids = {"object_id": lambda world: world.batch.pk}
