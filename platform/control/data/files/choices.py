"""Choices for fields of console forms that name a file."""

from control.core.api.forms import Choices, row_choices
from control.data.files.models import File
from control.data.files.selectors import files_list
from control.tenants.accounts.models import Organization


def prompt_files(organization: Organization) -> Choices:
    return row_choices(files_list(organization, purpose=File.Purpose.BATCH))
