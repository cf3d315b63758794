"""The further arms of an evaluation: other speculators and drafters with which it compares the speculator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.core.api.errors import ApiError
from control.models.base_speculators.services import speculator_preview, speculator_resolve
from control.models.catalog.drafters import changes_output, drafter_of
from control.models.catalog.fitting import fit_check
from control.models.catalog.models import Speculator
from control.tenants.accounts.models import Organization

SUFFIX = "suffix"
UNTRAINED = (SUFFIX, "ngram")  # drafters that need no speculator


@dataclass(frozen=True, slots=True)
class Arm:
    name: str  # a speculator's id, or one of UNTRAINED
    speculator: Speculator | None = None

    @property
    def needs_engine(self) -> bool:
        """Whether the arm needs an engine of its own. Every evaluation has an engine with suffix decoding already."""
        return self.name != SUFFIX

    @property
    def drafter(self) -> str:
        return self.name if self.speculator is None else drafter_of(self.speculator)


def arms_preview(
    organization: Organization, speculator: Speculator, named: Sequence[str], *, param: str = "compare_with"
) -> list[Arm]:
    """Returns what `arms_resolve` would return, without saving the use of a base speculator.

    Args:
        speculator: the evaluated speculator; an unsaved row if it is still to be trained.
        param: the request's parameter that contains `named`.
    Raises: as `arms_resolve`.
    """
    arms = [_arm(organization, name, param=f"{param}.{place}") for place, name in enumerate(named)]
    seen = {_identity(Arm(speculator.pk, speculator))}
    for place, arm in enumerate(arms):
        own_param = f"{param}.{place}"
        if _identity(arm) in seen:
            message = f"{own_param} names an arm that the evaluation already has: {named[place][:80]!r}"
            raise ApiError(400, message, "duplicate_arm", own_param)
        seen.add(_identity(arm))
        if arm.speculator is not None:
            _check_comparable(arm.speculator, speculator, own_param)
    return arms


def arms_resolve(organization: Organization, speculator: Speculator, named: Sequence[str]) -> list[Arm]:
    """Returns the arms that `compare_with` names. For a base speculator, the arm has the organization's use of it.

    Raises: ApiError: 404, a speculator does not exist or belongs to another organization; 400, the evaluation has an
        arm twice, or an adapter changes the answers of one arm; 409, a speculator is not ready, or was trained for
        another model or revision.
    """
    arms_preview(organization, speculator, named)  # before the use of a base speculator is saved
    return [
        Arm(name) if name in UNTRAINED else _of_speculator(speculator_resolve(organization, name)) for name in named
    ]


def arm_params(arms: Sequence[Arm]) -> dict[str, Any]:
    """Returns the parameters of the job. `compared` maps the ids of speculators to their drafters.

    These speculators must not be deleted before the job has ended.
    """
    compared = {arm.name: arm.drafter for arm in arms if arm.speculator is not None}
    return {"compare_with": [arm.name for arm in arms], "compared": compared}


def compares(params: Mapping[str, Any]) -> bool:
    """Returns whether the job's report has `arms`. Jobs of earlier releases have no such parameter."""
    return bool(params.get("compare_with"))


def _arm(organization: Organization, name: str, param: str) -> Arm:
    return Arm(name) if name in UNTRAINED else _of_speculator(speculator_preview(organization, name, param=param))


def _of_speculator(speculator: Speculator) -> Arm:
    return Arm(speculator.pk, speculator)


def _identity(arm: Arm) -> str:
    """Returns an id that is equal for equal arms.

    Arms with the same base speculator are equal, although each preview of a base speculator has a new id.
    """
    return arm.name if arm.speculator is None else arm.speculator.base_speculator_id or arm.name


def _check_comparable(speculator: Speculator, evaluated: Speculator, param: str) -> None:
    fit_check(speculator, evaluated.base_model, param=param)
    target = (evaluated.base_model_id, evaluated.target_revision)
    if (speculator.base_model_id, speculator.target_revision) != target:
        message = (
            f"Speculator {speculator.pk} was trained for another model or revision than the evaluated speculator, "
            f"which is for {evaluated.base_model.name!r} at {evaluated.target_revision[:12]}."
        )
        raise ApiError(409, message, "speculator_mismatch", param)
    adapted = [each for each in (evaluated, speculator) if changes_output(None, each)]
    if adapted:
        message = f"Speculator {adapted[0].pk} has an adapter that changes answers: only suffix and ngram compare."
        raise ApiError(400, message, "adapter_not_comparable", param)
