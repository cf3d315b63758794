"""What operators can ask for of files and work on them: the API's requests, and the services its views call."""

from typing import Any

from control.billing.spending.serializers import nanousd
from control.billing.usage.serializers import dollars
from control.data.files.requests import EXPIRY_CHOICES
from control.data.files.selectors import file_get, files_list
from control.data.files.serializers import expires_after
from control.models.catalog.selectors import base_model_get
from control.operations.console.asking import Ask
from control.operations.console.offers import checked, ids, models, prompts, same
from control.tenants.accounts.models import Organization
from control.workflows.batches.models import Batch
from control.workflows.batches.serializers import BatchInput
from control.workflows.batches.services import batch_create
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.selectors import dataset_get, datasets_list
from control.workflows.datasets.serializers import DatasetInput
from control.workflows.datasets.services import dataset_create
from control.workflows.distillations.models import Distillation
from control.workflows.distillations.serializers import DistillationInput
from control.workflows.distillations.services import distillation_create
from control.workflows.prompt_files.rows import ENDPOINTS
from control.workflows.quotes.models import Quote
from control.workflows.quotes.selectors import quote_get, quotes_list
from control.workflows.quotes.serializers import QuoteInput, QuoteUpdateInput
from control.workflows.quotes.services import quote_cap_set, quote_create


def _create_dataset(organization: Organization, body: dict[str, Any]) -> Dataset:
    values = checked(DatasetInput, body)
    return dataset_create(
        organization=organization,
        file=file_get(organization, values["file_id"]),
        base_model=values["model"] and base_model_get(organization, values["model"]),
    )


CREATE_DATASET = Ask(
    title="Validate a dataset",
    request=DatasetInput,
    run=_create_dataset,
    choices=lambda organization: {"file_id": ids(files_list(organization)), "model": models(organization)},
)


def _create_batch(organization: Organization, body: dict[str, Any]) -> Batch:
    values = checked(BatchInput, body)
    return batch_create(
        organization=organization,
        input_file=file_get(organization, values["input_file_id"], param="input_file_id"),
        endpoint=values["endpoint"],
        completion_window=values["completion_window"],
        metadata=values["metadata"],
        model=values["model"],
        output_expires_after=expires_after(values["output_expires_after"], param="output_expires_after"),
        quote=values["quote_id"] and quote_get(organization, values["quote_id"]),
    )


CREATE_BATCH = Ask(
    title="Create a batch",
    request=BatchInput,
    run=_create_batch,
    choices=lambda organization: {
        "input_file_id": prompts(organization),
        "endpoint": same(ENDPOINTS),
        "model": models(organization),
        "output_expires_after": EXPIRY_CHOICES,
        "quote_id": ids(quotes_list(organization)),
    },
)


def _create_distillation(organization: Organization, body: dict[str, Any]) -> Distillation:
    values = checked(DistillationInput, body)
    return distillation_create(
        organization=organization,
        base_model=base_model_get(organization, values["model"]),
        prompts_file=file_get(organization, values["prompts_file"], param="prompts_file"),
        quote=values["quote_id"] and quote_get(organization, values["quote_id"]),
        metadata=values["metadata"],
    )


CREATE_DISTILLATION = Ask(
    title="Create a distillation",
    request=DistillationInput,
    run=_create_distillation,
    choices=lambda organization: {
        "model": models(organization),
        "prompts_file": prompts(organization),
        "quote_id": ids(quotes_list(organization)),
    },
)


def _create_quote(organization: Organization, body: dict[str, Any]) -> Quote:
    values = checked(QuoteInput, body)
    return quote_create(
        organization=organization,
        dataset=dataset_get(organization, values["dataset_id"]),
        basis=Quote.Basis(values["basis"]),
        cap_nanousd=None if values["cap"] is None else nanousd(values["cap"]),
    )


CREATE_QUOTE = Ask(
    title="Quote a price",
    request=QuoteInput,
    run=_create_quote,
    choices=lambda organization: {"dataset_id": ids(datasets_list(organization))},
)


def _change_cap(row: Quote, body: dict[str, Any]) -> Quote:
    cap = checked(QuoteUpdateInput, body)["cap"]
    return quote_cap_set(quote=quote_get(row.organization, row.pk), nanousd=None if cap is None else nanousd(cap))


CHANGE_CAP = Ask(
    title="Change the cap",
    request=QuoteUpdateInput,
    run=_change_cap,
    choices=lambda organization: {},
    initial=lambda row: {"cap": None if row.cap_nanousd is None else dollars(row.cap_nanousd)["value"]},
)
