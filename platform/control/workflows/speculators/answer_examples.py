"""Examples of a speculator's answers, which its latest evaluation stored (`workers.inference.examples`).

They contain text of the organization's prompts and answers, so they are shown to its members only.
"""

from dataclasses import dataclass
from pathlib import PurePosixPath

import structlog
from pydantic import TypeAdapter, ValidationError

from control.core.storage.backends import ObjectMissing, get_storage
from control.models.catalog.models import Speculator

EXAMPLES_FILE = "examples.json"  # in the folder of the plot
MAX_BYTES = 256 << 10  # a worker's child writes less, but a hostile model may have taken it over

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    accepted: bool  # whether the tokens of the text are accepted draft tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerExample:
    custom_id: str
    prompt: str  # the beginning of the last message; may be empty
    acceptance_length: float
    parts: tuple[Part, ...]
    is_cut: bool  # whether the answer goes on


_FILE = TypeAdapter(tuple[AnswerExample, ...])


def answer_examples(speculator: Speculator) -> tuple[AnswerExample, ...]:
    """Returns the examples of the latest evaluation. Evaluations of earlier releases have stored none."""
    if not speculator.plot_key:
        return ()
    key = str(PurePosixPath(speculator.plot_key).with_name(EXAMPLES_FILE))
    try:
        with get_storage().open(key) as source:
            return _FILE.validate_json(source.read(MAX_BYTES))
    except ObjectMissing:
        return ()
    except ValidationError:
        log.error("invalid examples", speculator_id=speculator.pk)
        return ()
