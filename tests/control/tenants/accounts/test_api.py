"""The routes of the API for keys, members and projects."""

import datetime as dt
import statistics
import time
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from control.core.api.errors import ApiError
from control.serving.deployments.models import Deployment
from control.serving.deployments.services import deployment_create
from control.tenants.accounts.keys import checksum, new_token
from control.tenants.accounts.models import ApiKey, Member, Organization, User
from control.tenants.accounts.selectors import api_key_authenticate
from control.tenants.administration.services import project_archive, project_create
from tests.control.factories import make_base_model, make_key
from tests.control.serving.deployments.support import make_replica


def bearer(token: str) -> Client:
    return Client(raise_request_exception=False, headers={"Authorization": f"Bearer {token}"})


def is_accepted(token: str) -> bool:
    return bearer(token).get("/v1/models").status_code == 200


def post(client: Client, path: str, body: dict[str, Any], *, status: int = 201) -> Any:
    response = client.post(path, body, content_type="application/json")
    assert response.status_code == status, response.content
    return response.json()


def ready_deployment(organization: Organization, name: str) -> Deployment:
    deployment = deployment_create(organization=organization, name=name, base_model=make_base_model())
    Deployment.objects.filter(pk=deployment.pk).update(state="ready")
    make_replica(deployment, port=9)  # no process listens on port 9
    return deployment


def test_a_new_key_is_accepted_and_shown_only_once(client: Client) -> None:
    made = post(client, "/v1/api_keys", {"name": "ci"})

    assert is_accepted(made["key"])
    assert made["scopes"] == ["*"]
    body = client.get(f"/v1/api_keys/{made['id']}").json()
    listed = client.get("/v1/api_keys").json()["data"]
    assert body.keys() == made.keys() - {"key"}
    assert made["key"] not in str(listed)
    assert made["hint"].endswith(made["key"][-4:])


def test_an_idempotent_repetition_of_the_creation_of_an_api_key_does_not_show_the_secret_again(
    client: Client,
) -> None:
    first = client.post(
        "/v1/api_keys", {"name": "ci"}, content_type="application/json", headers={"Idempotency-Key": "a"}
    )
    repeated = client.post(
        "/v1/api_keys", {"name": "ci"}, content_type="application/json", headers={"Idempotency-Key": "a"}
    )

    assert (repeated.json()["id"], repeated.json()["key"]) == (first.json()["id"], None)
    assert ApiKey.objects.filter(name="ci").count() == 1


def test_keys_are_listed_newest_first_page_by_page(client: Client) -> None:
    key_ids = [post(client, "/v1/api_keys", {"name": f"key {number}"})["id"] for number in range(3)]

    first = client.get("/v1/api_keys?limit=2").json()
    second = client.get(f"/v1/api_keys?limit=2&after={first['last_id']}").json()

    assert [key["id"] for key in first["data"]] == key_ids[:0:-1]  # without the oldest key, and in reverse order
    assert second["data"][0]["id"] == key_ids[0]
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert client.get("/v1/api_keys?after=nothing").json()["error"]["param"] == "after"


def test_a_deleted_key_is_refused_at_once(client: Client) -> None:
    made = post(client, "/v1/api_keys", {"name": "leaked"})

    assert client.delete(f"/v1/api_keys/{made['id']}").json() == {
        "id": made["id"],
        "object": "api_key",
        "deleted": True,
    }
    assert not is_accepted(made["key"])
    assert client.get(f"/v1/api_keys/{made['id']}").json()["revoked_at"] is not None


def test_after_a_rotation_both_keys_work_until_the_grace_period_ends(client: Client) -> None:
    old = post(client, "/v1/api_keys", {"name": "ci", "scopes": ["models:read"]})
    new = post(client, f"/v1/api_keys/{old['id']}/rotate", {"grace_seconds": 3600})

    assert is_accepted(old["key"])
    assert is_accepted(new["key"])
    assert (new["name"], new["scopes"], new["rotated_from"]) == ("ci", ["models:read"], old["id"])

    ApiKey.objects.filter(pk=old["id"]).update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    assert not is_accepted(old["key"])
    assert is_accepted(new["key"])
    assert post(client, f"/v1/api_keys/{old['id']}/rotate", {}, status=409)["error"]["code"] == "key_ended"


def test_a_rotation_without_a_grace_period_ends_the_old_key_at_once(client: Client) -> None:
    old = post(client, "/v1/api_keys", {"name": "ci"})
    post(client, f"/v1/api_keys/{old['id']}/rotate", {"grace_seconds": 0})

    assert not is_accepted(old["key"])


def test_a_rotation_does_not_extend_the_lifetime_of_a_key(client: Client) -> None:
    soon = int(timezone.now().timestamp()) + 60
    old = post(client, "/v1/api_keys", {"name": "ci", "expires_at": soon})
    new = post(client, f"/v1/api_keys/{old['id']}/rotate", {"grace_seconds": 3600})

    assert new["expires_at"] == soon
    assert client.get(f"/v1/api_keys/{old['id']}").json()["expires_at"] == soon


def test_a_key_cannot_grant_scopes_that_it_does_not_have(organization: Organization) -> None:
    _, token = make_key(organization, scopes=["admin", "files:*"])
    unrestricted_key, _ = make_key(organization)
    restricted_client = bearer(token)

    assert post(restricted_client, "/v1/api_keys", {"name": "same"})["scopes"] == ["admin", "files:*"]
    post(restricted_client, "/v1/api_keys", {"name": "less", "scopes": ["files:read"]})
    for scopes in (["*"], ["jobs:read"], ["files:read", "inference"]):
        refused = post(restricted_client, "/v1/api_keys", {"name": "more", "scopes": scopes}, status=403)
        assert refused["error"]["code"] == "insufficient_scope"
    post(restricted_client, f"/v1/api_keys/{unrestricted_key.pk}/rotate", {}, status=403)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"name": "x", "scopes": ["files:delete"]}, "scopes.0"),
        ({"name": "x", "scopes": []}, "scopes"),
        ({"name": "x", "expires_at": 1}, "expires_at"),
        ({"name": "x", "expires_at": 10**30}, "expires_at"),
        ({"name": ""}, "name"),
        ({"name": "x", "organization": "org_1"}, "organization"),
        ({"name": "x", "deployment_ids": [], "scopes": ["inference"]}, "deployment_ids"),
    ],
)
def test_a_key_with_invalid_values_is_refused(client: Client, body: dict[str, Any], param: str) -> None:
    assert post(client, "/v1/api_keys", body, status=400)["error"]["param"] == param


def test_a_key_restricted_to_one_deployment_cannot_see_or_stop_others(
    client: Client, organization: Organization
) -> None:
    own, other = ready_deployment(organization, "ours"), ready_deployment(organization, "other")
    body = {"name": "app", "deployment_ids": [own.pk], "scopes": ["inference", "deployments:*"]}
    app = bearer(post(client, "/v1/api_keys", body)["key"])

    assert [row["id"] for row in app.get("/v1/deployments").json()["data"]] == [own.pk]
    assert app.get(f"/v1/deployments/{own.pk}").status_code == 200
    assert app.get(f"/v1/deployments/{other.pk}").status_code == 404
    assert app.post(f"/v1/deployments/{other.pk}/stop").status_code == 404
    post(app, "/v1/deployments", {"name": "new", "model": "any"}, status=403)


def test_a_restricted_key_can_send_requests_only_to_its_deployment(client: Client, organization: Organization) -> None:
    own = ready_deployment(organization, "ours")
    ready_deployment(organization, "other")
    made = post(client, "/v1/api_keys", {"name": "app", "deployment_ids": [own.pk]})
    app = bearer(made["key"])

    assert made["scopes"] == ["inference"]
    reached = post(app, "/v1/completions", {"model": "ours", "prompt": "x"}, status=502)
    hidden = post(app, "/v1/completions", {"model": "other", "prompt": "x"}, status=404)
    assert reached["error"]["code"] == "upstream_unavailable"  # the key was accepted, but the engine does not exist
    assert hidden["error"]["code"] == "model_not_found"


def test_a_restricted_key_may_have_neither_foreign_deployments_nor_all_scopes(
    client: Client, organization: Organization, other_organization: Organization
) -> None:
    own, foreign = ready_deployment(organization, "ours"), ready_deployment(other_organization, "theirs")

    post(client, "/v1/api_keys", {"name": "x", "deployment_ids": [foreign.pk]}, status=404)
    refused = post(client, "/v1/api_keys", {"name": "x", "deployment_ids": [own.pk], "scopes": ["*"]}, status=400)
    assert refused["error"]["param"] == "scopes"


def seconds_to_refuse(key_id: str) -> float:
    """Authenticates with a well-formed but invalid key with this id. Returns: the seconds until the refusal."""
    body = f"{key_id}{new_token().secret}"
    guess = f"sk_live_{body}{checksum(body)}"
    began = time.perf_counter()
    with pytest.raises(ApiError):
        api_key_authenticate(guess)
    return time.perf_counter() - began


@pytest.mark.parametrize("num_guesses", [1_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_no_guessed_key_is_accepted_and_the_time_does_not_reveal_existing_ids(
    organization: Organization, num_guesses: int
) -> None:
    """Guesses with the id of a real key take as long to refuse as guesses with other ids."""
    key, _ = make_key(organization)
    seconds_with_known_id, seconds_with_unknown_id = [], []
    for _ in range(num_guesses // 2):
        seconds_with_known_id.append(seconds_to_refuse(key.pk))
        seconds_with_unknown_id.append(seconds_to_refuse(new_token().id))

    lower_quartile, _, upper_quartile = statistics.quantiles(seconds_with_known_id + seconds_with_unknown_id, n=4)
    difference = abs(statistics.median(seconds_with_known_id) - statistics.median(seconds_with_unknown_id))
    assert difference < upper_quartile - lower_quartile, "the medians differ by more than the interquartile range"


def test_the_keys_of_an_archived_project_are_refused(client: Client, organization: Organization) -> None:
    project = post(client, "/v1/projects", {"name": "chatbot"})
    made = post(client, "/v1/api_keys", {"name": "bot", "project_id": project["id"]})
    assert is_accepted(made["key"])

    archived = post(client, f"/v1/projects/{project['id']}/archive", {}, status=200)

    assert archived["archived_at"] is not None
    assert not is_accepted(made["key"])
    refused = post(client, "/v1/api_keys", {"name": "bot", "project_id": project["id"]}, status=409)
    assert refused["error"]["code"] == "project_archived"


def test_names_of_projects_are_unique_within_an_organization(client: Client, other_organization: Organization) -> None:
    project_archive(project=project_create(organization=other_organization, name="chatbot"))
    first = post(client, "/v1/projects", {"name": "chatbot"})
    second = post(client, "/v1/projects", {"name": "search"})

    assert post(client, "/v1/projects", {"name": "chatbot"}, status=409)["error"]["code"] == "name_taken"
    renamed = client.patch(f"/v1/projects/{second['id']}", {"name": "chatbot"}, content_type="application/json")
    assert renamed.status_code == 409
    renamed = client.patch(f"/v1/projects/{second['id']}", {"name": "find"}, content_type="application/json")
    assert renamed.json()["name"] == "find"
    assert [row["id"] for row in client.get("/v1/projects").json()["data"]] == [second["id"], first["id"]]


def test_the_last_owner_of_an_organization_cannot_be_removed(client: Client) -> None:
    owner = post(client, "/v1/members", {"email": "ada@example.com", "role": "owner"})
    path = f"/v1/members/{owner['id']}"

    assert client.delete(path).json()["error"]["code"] == "last_owner"
    assert client.patch(path, {"role": "member"}, content_type="application/json").status_code == 409

    post(client, "/v1/members", {"email": "grace@example.com", "role": "owner"})
    assert client.patch(path, {"role": "member"}, content_type="application/json").json()["role"] == "member"
    assert client.delete(path).json()["deleted"] is True
    assert client.get(path).status_code == 404


def test_an_invited_user_cannot_sign_in_before_an_operator_allows_it(client: Client) -> None:
    post(client, "/v1/members", {"email": "Ada@Example.com"})

    user = User.objects.get(username="ada@example.com")
    assert (user.has_usable_password(), user.is_staff, user.is_superuser) == (False, False, False)
    assert post(client, "/v1/members", {"email": "ada@example.com"}, status=409)["error"]["code"] == "member_exists"


def test_a_member_of_another_organization_can_be_invited(client: Client, other_organization: Organization) -> None:
    user = User.objects.create_user("ada@example.com", password="correct horse battery")
    Member.objects.create(organization=other_organization, user=user, role=Member.Role.OWNER)

    post(client, "/v1/members", {"email": "ada@example.com"})

    user.refresh_from_db()
    assert user.has_usable_password()
    assert [row["email"] for row in client.get("/v1/members").json()["data"]] == ["ada@example.com"]
    assert set(user.memberships.values_list("role", flat=True)) == {"owner", "member"}
