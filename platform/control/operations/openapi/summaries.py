"""The one-line summary of each operation."""

from control.core.api.operation import Operation

_VERBS = frozenset(
    {"archive", "cancel", "create", "delete", "export", "import", "list", "pause", "resume", "retrieve", "rotate"}
    | {"start", "stop", "update"}
)
_NAMES = {"api_keys": "API keys", "fine_tuning.jobs": "fine-tuning jobs"}


def summary_of(operation: Operation) -> str:
    """Returns the declared summary, or one like "Cancel a batch" if the id ends with a common verb.

    Raises: ValueError: there is neither a summary nor a common verb.
    """
    if operation.summary is not None:
        return operation.summary
    path, _, verb = operation.id.rpartition(".")
    if verb not in _VERBS:
        raise ValueError(f"@operation({operation.id!r}) needs a summary, because {verb!r} is not a common verb")
    names = _NAMES.get(path) or path.rpartition(".")[2].replace("_", " ")
    return f"{verb.capitalize()} {names if verb == 'list' else _one_of(names)}"


def _one_of(names: str) -> str:
    for plural, singular in (("ies", "y"), ("ches", "ch"), ("s", "")):
        if names.endswith(plural):
            name = names.removesuffix(plural) + singular
            return f"{'an' if name[0] in 'aeiouA' else 'a'} {name}"
    raise ValueError(f"{names!r} is no plural")
