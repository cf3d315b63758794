"""Makes the archive of a speculator: its weights, the evidence for what it does, and the commands that serve it.

    README.md          how to serve the speculator and how to verify the archive
    manifest.json      the SHA-256 of every other file, signed like a certificate
    certificate.json   of the evaluation, as it was signed
    report.json        of the evaluation, with report.png and report.svg
    recipe.json        from which model and data the speculator was trained, and with which hyperparameters
    speculator/        the files that our engine serves
    FORMAT/            the same weights for another engine, for each format that supports this speculator

`slipstream verify ARCHIVE` checks an archive without a network. Equal inputs give archives with equal bytes, except for
the manifest's signature if the signing key was replaced.
"""

import json
import shutil
from pathlib import Path

from control.core.api.errors import ApiError
from control.core.certificates import ARCHIVE_FORMAT, certificate_of
from control.core.storage.backends import ObjectMissing, get_storage
from control.data.files.models import File
from control.models.catalog.models import Speculator
from control.tenants.audit.record import audited
from control.workflows.evaluations.models import Evaluation
from control.workflows.evaluations.selectors import evaluations_list
from control.workflows.speculators.services import (
    check_exportable,
    conversion_folders,
    fetch_artifact,
    store_archive,
    target_of,
)
from workers.contracts import file_sha256, files_below
from workers.exports.errors import ExchangeError
from workers.exports.folder import write_json
from workers.exports.formats import export_speculator, formats_of
from workers.exports.serve_commands import command_of, own_command
from workers.exports.target import Target

_PLOTS = ("report.png", "report.svg")
_README = """\
# {name}, version {version}

A speculator of kind {kind} for the model {model}. The evaluation {evaluation} compared the model's answers with and
without the speculator: {equal} of {prompts} answers were equal. `report.json` has the speeds, and `certificate.json` is
the signed statement about the answers.

## Verify

    slipstream certificates key       # once: downloads the public key of the service
    slipstream verify {file}

## Serve

Run these commands in this folder. `{model}` stands for the folder of the model, whose `config.json` and weights must
have the fingerprint {revision}.

{commands}
{omitted}"""


@audited("speculator.archive", records_itself=True)
def speculator_archive(*, speculator: Speculator, evaluation_id: str | None) -> File:
    """Stores the archive as a file of the organization.

    evaluation_id: the evaluation whose report and certificate the archive has; None: the latest one.

    Raises: ApiError: 404, there is no such evaluation of this speculator; 409, no evaluation of the speculator has
        succeeded; otherwise as `speculator_export`.
    """
    check_exportable(speculator)
    evaluation = _evaluation(speculator, evaluation_id)
    with conversion_folders(speculator.organization_id, "archive") as (archive,):
        native = archive / "speculator"
        native.mkdir()
        fetch_artifact(speculator, native)
        commands, omitted = _export_all(speculator, target_of(speculator.base_model), archive)
        _write_evidence(evaluation, archive)
        provenance = native / "provenance.json"
        recipe = {
            "model": speculator.base_model.name,
            "model_sha256": speculator.target_revision,
            "training": speculator.training,
            "provenance": json.loads(provenance.read_text()) if provenance.exists() else None,
        }
        write_json(archive / "recipe.json", recipe)
        _write_readme(evaluation, archive, commands, omitted)
        _write_manifest(evaluation, archive)
        return store_archive(archive, speculator, suffix="archive", action="speculator.archive")


def _evaluation(speculator: Speculator, evaluation_id: str | None) -> Evaluation:
    evaluations = evaluations_list(speculator.organization).filter(speculator=speculator)
    if evaluation_id is not None:
        evaluation = evaluations.filter(pk=evaluation_id).first()
        if evaluation is None:
            message = f"Speculator {speculator.pk} has no evaluation {evaluation_id[:80]!r}."
            raise ApiError(404, message, "evaluation_not_found", "evaluation_id")
    else:
        evaluation = evaluations.filter(certificate__isnull=False).order_by("-pk").first()
    if evaluation is None or evaluation.certificate is None:
        message = f"No evaluation of speculator {speculator.pk} has a certificate yet: evaluate the speculator first."
        raise ApiError(409, message, "evaluation_not_finished", "evaluation_id")
    return evaluation


def _export_all(speculator: Speculator, target: Target, archive: Path) -> tuple[list[str], list[str]]:
    """Writes a folder for each format. Returns a line with the command for each, and lines about omitted formats."""
    kind, model = speculator.kind, speculator.base_model.name
    commands, omitted = [own_command(kind, model, "speculator")], []
    for form in formats_of(kind):
        folder = archive / form
        folder.mkdir()
        try:
            export_speculator(archive / "speculator", form, target, folder)
            commands.append(command_of(form, kind, model, folder))
        except ExchangeError as error:
            shutil.rmtree(folder)
            omitted.append(f"- `{form}` is omitted: {error.message}")
    return commands, omitted


def _write_evidence(evaluation: Evaluation, archive: Path) -> None:
    assert evaluation.certificate is not None  # `_evaluation` chose one that has a certificate
    write_json(archive / "certificate.json", evaluation.certificate)
    if not _fetch(evaluation, "report.json", archive):  # earlier releases stored the report only in the job
        write_json(archive / "report.json", evaluation.job.result or {})
    for name in _PLOTS:
        _fetch(evaluation, name, archive)


def _fetch(evaluation: Evaluation, name: str, archive: Path) -> bool:
    try:
        get_storage().get_file(f"{evaluation.plots_prefix}/{name}", archive / name)
    except ObjectMissing:
        return False
    return True


def _write_readme(evaluation: Evaluation, archive: Path, commands: list[str], omitted: list[str]) -> None:
    speculator = evaluation.speculator
    counts = (evaluation.certificate or {})["statement"]["counts"]
    text = _README.format(
        name=speculator.name,
        version=speculator.version,
        kind=speculator.kind,
        model=speculator.base_model.name,
        evaluation=evaluation.pk,
        prompts=counts["prompts"],
        equal=counts["equal"],
        revision=speculator.target_revision,
        file=f"{speculator.name}-v{speculator.version}-archive.zip",
        commands="\n".join(f"    {command}" for command in commands),
        omitted="\n".join(["", *omitted, ""]) if omitted else "",
    )
    (archive / "README.md").write_text(text, encoding="utf-8")


def _write_manifest(evaluation: Evaluation, archive: Path) -> None:
    statement = {
        "speculator_id": evaluation.speculator_id,
        "evaluation_id": evaluation.pk,
        "files": {path.relative_to(archive).as_posix(): file_sha256(path) for path in files_below(archive)},
    }
    write_json(archive / "manifest.json", certificate_of(statement, kind=ARCHIVE_FORMAT))
