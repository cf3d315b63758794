"""Helpers of the console's tests."""

from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse

from control.tenants.accounts.models import User


def operator_client() -> Client:
    client = Client()
    client.force_login(User.objects.create_superuser("operator"))
    return client


def page(client: Client, path: str) -> str:
    """Returns the HTML of the page."""
    response = client.get(path)
    assert response.status_code == 200, path
    return response.content.decode()


def change_path(model: str, pk: object) -> str:
    """Returns the path of the page of a database row. The key is quoted as in the console's own links."""
    return reverse(f"admin:{model}_change", args=[quote(str(pk))])


def press(client: Client, model: str, pk: object, button: str) -> int:
    """Presses a button on the page of a database row. Returns: the status code of the response."""
    path = reverse(f"admin:{model}_{button}", args=[quote(str(pk))])
    return client.post(path, {"_form_submitted": "True"}).status_code  # the fields that unfold's dialog sends
