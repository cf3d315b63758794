"""Example objects and request bodies of the gateway, for the tests that cover all routes."""

from tests.control.world import Bodies, Body, Ids

IDS: Ids = {
    "deployment_name": lambda world: world.deployment.name,
}
BODIES: Bodies = {
    "POST /v1/chat/completions": Body(
        lambda world: {"model": "nothing", "messages": [{"role": "user", "content": "x"}]}, {"model": "deployment_name"}
    ),
    "POST /v1/completions": Body(lambda world: {"model": "nothing", "prompt": "x"}, {"model": "deployment_name"}),
    "POST /v1/audit": Body(
        lambda world: {"model": "nothing", "request": {"prompt": "x"}, "response": {}}, {"model": "deployment_name"}
    ),
    "POST /v1/responses": Body(lambda world: {"model": "nothing", "input": "x"}, {"model": "deployment_name"}),
    "POST /v1/messages": Body(
        lambda world: {"model": "nothing", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
        {"model": "deployment_name"},
    ),
    "POST /v1/messages/count_tokens": Body(
        lambda world: {"model": "nothing", "messages": [{"role": "user", "content": "x"}]}, {"model": "deployment_name"}
    ),
}
