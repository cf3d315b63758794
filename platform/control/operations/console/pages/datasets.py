"""Pages of datasets."""

from django.contrib import admin
from django.utils.html import format_html
from django.utils.safestring import SafeString

from control.operations.console.form_pages import FormAdmin, form_action
from control.operations.console.rendering import badge, link, pairs, table
from control.operations.console.sidebar import SidebarEntry
from control.workflows.datasets.models import Dataset
from control.workflows.datasets.requests import CREATE_DATASET, FILTER_DATASET, SPLIT_DATASET

MAX_ERRORS = 50


@admin.register(Dataset)
class DatasetAdmin(FormAdmin):
    scope = "datasets"
    sidebar = SidebarEntry("Work", 7, "Datasets", "fact_check")
    create_form = CREATE_DATASET
    actions_detail = ["split", "filter"]
    list_display = ["id", "name", "version", "organization", "format", "state", "num_rows", "num_errors", "created_at"]
    list_filter = ["status", "organization"]
    search_fields = ["id", "name", "file__id"]
    ordering = ["-id"]
    list_select_related = ["organization"]
    fields = [
        "id", "name", "version", "organization", "the_file", "the_model", "format", "state", "num_rows", "num_answers",
        "num_tokens", "by_code", "bad_lines", "equal_prompts", "similar_prompts", "sensitive_data", "made_of",
        "created_at",
    ]  # fmt: skip

    split = form_action("split", SPLIT_DATASET, icon="call_split", when=lambda row: row.status == Dataset.Status.VALID)

    filter = form_action(
        "filter", FILTER_DATASET, icon="filter_alt", when=lambda row: row.status == Dataset.Status.VALID
    )

    @admin.display(description="status", ordering="status")
    def state(self, row: Dataset) -> SafeString:
        return badge(row, row.status, active=False)

    @admin.display(description="file")
    def the_file(self, row: Dataset) -> SafeString | str:
        return link(row.file)

    @admin.display(description="base model")
    def the_model(self, row: Dataset) -> SafeString | str:
        return link(row.base_model)

    @admin.display(description="bad lines by code")
    def by_code(self, row: Dataset) -> SafeString:
        return pairs(row, "by-code", row.errors_by_code)

    @admin.display(description=f"the first {MAX_ERRORS} bad lines")
    def bad_lines(self, row: Dataset) -> SafeString:
        """Leaves out the messages, which could quote a customer's text."""
        lines = [(bad.get("line"), bad.get("column"), bad.get("code")) for bad in row.errors[:MAX_ERRORS]]
        return table(row, "bad-lines", ["line", "column", "code"], lines)

    @admin.display(description="prompts that equal an earlier one")
    def equal_prompts(self, row: Dataset) -> SafeString | str:
        return _twins(row, "exact")

    @admin.display(description="further prompts that are similar to an earlier one")
    def similar_prompts(self, row: Dataset) -> SafeString | str:
        return _twins(row, "near")

    @admin.display(description="secrets and personal data")
    def sensitive_data(self, row: Dataset) -> SafeString | str:
        if row.sensitive is None:
            return "not scanned"
        kinds = [(one["kind"], one["num_found"], one["num_rows"], one["lines"][0]) for one in row.sensitive["kinds"]]
        return table(row, "sensitive", ["kind", "found", "rows", "first line"], kinds) if kinds else "none"

    @admin.display(description="made of")
    def made_of(self, row: Dataset) -> SafeString | str:
        return pairs(row, "made-of", row.origin) if row.origin else "an uploaded file"


def _twins(row: Dataset, part: str) -> SafeString | str:
    """Shows the number of prompts, and the lines of the first ones."""
    if row.duplicates is None:
        return "not compared"
    found = row.duplicates[part]
    if not found["num_rows"]:
        return "0"
    lines = [(example["line"], example["other_line"]) for example in found["examples"]]
    return format_html("{}{}", found["num_rows"], table(row, f"{part}-twins", ["line", "is like line"], lines))
