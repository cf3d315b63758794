"""Forms with the fields of the API's own requests.

A form checks nothing itself. The form builds the body that a customer would send to the API. The API's request model
and service check this body, and an error message is shown at the field that the error names.
"""

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin

from django import forms
from django.core.files.uploadedfile import UploadedFile
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from unfold.widgets import (
    UnfoldAdminFileFieldWidget,
    UnfoldAdminSelectMultipleWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from control.core.api.errors import ApiError
from control.core.api.forms import Choices, name_choices
from control.core.api.json_body import StrictJsonParser
from control.core.api.schemas import OneOf, RequestModel

Kind = Literal["text", "value", "list", "object", "file"]  # value: a number or a boolean, as in JSON

_NOT_SET = object()
_HELP = {"list": "Separated by commas.", "object": "A JSON object."}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a request, named by its path, such as `training.kind`."""

    path: str
    kind: Kind
    is_required: bool = False
    default: Any = _NOT_SET
    choices: Choices | None = None
    help: str = ""

    def as_django(self, choices: Choices | None, initial: Any) -> forms.Field:
        """Returns a Django field. `choices`: None if the user types the value or selects a file.

        The field is never required, because the API itself reports required values that are missing.
        """
        words = self.path.removesuffix("_id").replace(".", ": ").replace("_", " ")
        label = words[0].upper() + words[1:] + (" *" if self.is_required else "")
        if self.kind == "file":
            return forms.FileField(label=label, required=False, widget=UnfoldAdminFileFieldWidget)
        if choices is None:
            text = f"{self.help} {_HELP.get(self.kind, '')}".strip()
            widget = UnfoldAdminTextareaWidget({"rows": 4}) if self.kind == "object" else UnfoldAdminTextInputWidget
            return forms.CharField(
                label=label, required=False, initial=_as_text(initial), help_text=text, widget=widget
            )
        if self.kind == "list":
            multiple = UnfoldAdminSelectMultipleWidget
            return forms.MultipleChoiceField(
                label=label, required=False, choices=choices, initial=initial, widget=multiple
            )
        offered = choices if self.default not in (_NOT_SET, None) else [("", "–"), *choices]
        single = UnfoldAdminSelectWidget
        return forms.ChoiceField(label=label, required=False, choices=offered, initial=_as_text(initial), widget=single)

    def value(self, submitted: Any) -> Any:
        """Returns the value for the body. Text that is not valid JSON stays as it is, and the API reports the error."""
        if isinstance(submitted, list) or self.kind in ("text", "file"):
            return submitted
        return _parsed(f"[{submitted}]" if self.kind == "list" else submitted, otherwise=submitted)


class RequestForm(forms.Form):
    """`choices` and `initial` are keyed by the paths of fields. `initial` has current values of the edited object."""

    def __init__(
        self,
        request: type[RequestModel],
        *args: Any,
        choices: Mapping[str, Choices],
        initial: Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._request_fields = list(_fields_of_model(request))
        for field in self._request_fields:
            current = initial.get(field.path, None if field.default is _NOT_SET else field.default)
            self.fields[field.path] = field.as_django(choices.get(field.path, field.choices), current)

    def body(self) -> dict[str, Any]:
        """Returns the body of a valid form. An empty field is null if its default is null, and otherwise left out."""
        body: dict[str, Any] = {}
        for field in self._request_fields:
            submitted = self.cleaned_data[field.path]
            if submitted in ("", None):
                if field.default is None:
                    _put(body, field.path, None)
            else:
                _put(body, field.path, field.value(submitted))
        return body

    def refuse(self, message: str, path: str) -> None:
        """Shows the error at the field `path`, or at its nearest parent that is a field, or else at the whole form."""
        while path and path not in self.fields:
            path = path.rpartition(".")[0]
        self.add_error(path or None, message)


def _put(body: dict[str, Any], path: str, value: Any) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    if isinstance(value, dict) and isinstance(body.get(name), dict):
        body[name] |= value
    else:
        body[name] = value


def _fields_of_model(model: type[BaseModel], prefix: str = "") -> Iterator[Field]:
    """Yields a field for each field of the model and of its nested models.

    A nullable nested model becomes one field of the kind `object`. A nested model that allows additional keys gets one
    more field of the kind `object`, which holds these keys.
    """
    for name, info in model.model_fields.items():
        path, types = f"{prefix}{name}", _types(info.annotation)
        if len(types) == 1 and _is_a(types[0], BaseModel):
            yield from _fields_of_model(types[0], f"{path}.")
            if types[0].model_config.get("extra") == "allow":
                yield Field(path=path, kind="object", help="Other hyperparameters of the chosen kind of training.")
            continue
        yield Field(
            path=path,
            kind=_kind(types),
            is_required=info.is_required(),
            default=_NOT_SET if info.is_required() else info.get_default(call_default_factory=True),
            choices=_choices(info, types),
            help=info.description or "",
        )


def _kind(types: tuple[Any, ...]) -> Kind:
    if any(_is_a(member, UploadedFile) for member in types):
        return "file"
    if str in types:
        return "text"
    if any(getattr(member, "__origin__", member) is list for member in types):
        return "list"
    if any(getattr(member, "__origin__", member) is dict or _is_a(member, BaseModel) for member in types):
        return "object"
    return "value"


def _choices(info: FieldInfo, types: tuple[Any, ...]) -> Choices | None:
    offered = next((entry for entry in info.metadata if isinstance(entry, OneOf)), None)
    if offered is not None:
        return name_choices(offered.values)
    named = [name for kind in types if get_origin(kind) is Literal for name in get_args(kind)]
    return [("true", "yes"), ("false", "no"), *name_choices(named)] if bool in types else None


def _is_a(member: Any, kind: type) -> bool:
    return isinstance(member, type) and issubclass(member, kind)


def _types(annotation: Any) -> tuple[Any, ...]:
    """Returns the types of a union, without the metadata of `Annotated`."""
    members = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    return tuple(getattr(kind, "__origin__", kind) if hasattr(kind, "__metadata__") else kind for kind in members)


def _as_text(value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(json.dumps(item) for item in value)
    return json.dumps(value) if isinstance(value, bool) else value


def _parsed(text: str, *, otherwise: str) -> Any:
    try:
        return StrictJsonParser().parse(io.BytesIO(text.encode()))
    except ApiError:
        return otherwise
