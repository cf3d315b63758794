"""Creates quotes that are based on history instead of a pilot batch, so that no batch has to run."""

from control.models.catalog.models import BaseModel
from control.tenants.accounts.models import Organization
from control.workflows.datasets.services import dataset_create
from control.workflows.quotes.models import Quote
from tests.control.factories import chat_row, make_file


def make_quote(organization: Organization, base_model: BaseModel, *, cap_nanousd: int | None = None) -> Quote:
    dataset = dataset_create(
        organization=organization, file=make_file(organization, [chat_row()]), base_model=base_model
    )
    return Quote.objects.create(
        organization=organization,
        dataset=dataset,
        basis=Quote.Basis.HISTORY,
        status=Quote.Status.READY,
        output_tokens=1,
        cap_nanousd=cap_nanousd,
    )
