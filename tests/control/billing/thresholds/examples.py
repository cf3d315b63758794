"""Example request bodies of thresholds of spending, for the tests that cover all routes."""

from tests.control.world import Bodies, Body

BODIES: Bodies = {
    "PUT /v1/spending_thresholds": Body(
        lambda world: {"thresholds": [{"amount": 50}, {"percent_of_cap": 80}]}, {"project_id": "project_id"}
    ),
}
