"""The evaluation job, its report and its plot."""

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from control.models.catalog.folder import inspect_folder
from engine.config import EngineConfig
from engine.grammars.compiler import GrammarCompiler
from engine.load import load_engine
from engine.request import FinishReason, SpeculationStats, StepOutput
from engine.row_invariance import EXACT, RowInvariance
from engine.tokenizer import Tokenizer
from tests.workers.support import Recorder, chat_row, chat_rows, model_with_another_end_token, write_lines
from workers.contracts import EvaluationSpec, Event, fingerprint
from workers.failures import InvalidInputError, UserConfigError
from workers.inference.comparison import Arms, ArmTotals, Measurement, measure
from workers.inference.distribution import DistributionTest
from workers.inference.economy import Economics
from workers.inference.evaluation import ProgressReporter, run_evaluation
from workers.inference.evidence import evidence
from workers.inference.report import evaluation_report
from workers.inference.rows import InputRow, RowAnswer, RowRequest, prepare_row

REQUIRED_KEYS = {
    "prompts_held_out", "outputs_equal", "first_divergences", "acceptance_length", "acceptance_rate_per_position",
    "tokens_per_second_plain", "tokens_per_second_speculative", "speedup", "concurrencies", "num_tokens", "model",
    "drafter", "dtype", "device", "max_tokens", "looping_answers", "definitions",
}  # fmt: skip


def make_spec(folder: Path, model: Path, rows: list[dict[str, Any]]) -> EvaluationSpec:
    return EvaluationSpec(
        job_id="job_0123",
        model_dir=str(model),
        model_name="tiny",
        prompts_path=str(write_lines(folder / "rows.jsonl", rows)),
        output_dir=str(folder / "output"),
        checkpoint_dir=str(folder / "checkpoint"),
        drafter="ngram",
        speculator_dir=None,
        concurrencies=(1, 4),
        max_tokens=12,
    )


def test_suffix_decoding_does_not_copy_from_answers_of_an_earlier_run(tiny_model: Path) -> None:
    tokenizer, config = Tokenizer.load(tiny_model), EngineConfig(draft_budget=8)
    plain, suffix, other = (load_engine(tiny_model, drafter=d, config=config) for d in ("none", "suffix", "suffix"))
    arms = Arms(plain=plain, suffix=suffix, speculative=other)
    rows = [prepared(number, f"Question {number}", tokenizer, temperature=0.7) for number in range(5)]
    found = measure(arms, rows, tokenizer=tokenizer, concurrency=5, repeats=4, on_answer=lambda: None)
    # Only an earlier answer to the same row would be a good draft, because the answers have little in common.
    assert all(arm.speculation.mean_acceptance_length < 1.2 for arm in found.arms.values())


def prepared(number: int, content: str, tokenizer: Tokenizer, **body: Any) -> RowRequest:
    row = InputRow(number, f"row-{number}", "/v1/chat/completions", chat_row("x", content, **body)["body"])
    grammars = GrammarCompiler(tokenizer, tokenizer.eos_token_ids)
    request = prepare_row(row, tokenizer=tokenizer, grammars=grammars, max_seq_len=1024, seed_key="job")
    assert isinstance(request, RowRequest)
    return request


def test_a_report_has_every_required_figure_and_counts_all_answers_as_equal(tmp_path: Path, tiny_model: Path) -> None:
    finished = run_evaluation(make_spec(tmp_path, tiny_model, chat_rows(5, temperature=0.7)), Recorder())
    report = json.loads(Path(finished.artifacts["report"]).read_text())
    assert report == json.loads(json.dumps(finished.result))
    assert report.keys() >= REQUIRED_KEYS
    assert (report["prompts_held_out"], report["outputs_equal"], report["first_divergences"]) == (5, 5, [])
    assert report["num_tokens"] == 5 * 12  # the rows ask for 24 tokens, but max_tokens of the evaluation is 12
    assert [point["concurrency"] for point in report["concurrencies"]] == [1, 4]
    assert report["speedup"] == report["concurrencies"][0]["speedup"]
    (phase,), (context,) = report["by_phase"], report["by_context"]
    assert (phase["phase"], context["context_from"], context["context_to"]) == ("answering", 0, 512)
    assert phase["acceptance_length"] == context["acceptance_length"] == report["acceptance_length"]
    assert phase["decode_tokens_per_second_plain"] > 0 < phase["decode_tokens_per_second_speculative"]


def test_the_plot_is_written_as_png_and_svg(tmp_path: Path, tiny_model: Path) -> None:
    finished = run_evaluation(make_spec(tmp_path, tiny_model, chat_rows(2)), Recorder())
    assert Path(finished.artifacts["plot"]).read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert ElementTree.parse(finished.artifacts["drawing"]).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_evidence_describes_the_run_and_its_result(tmp_path: Path, tiny_model: Path) -> None:
    rows = [*chat_rows(3), *chat_rows(2, temperature=0.7), chat_row("bad", "x", temperature=9)]
    rows = [row | {"custom_id": f"row-{number}"} for number, row in enumerate(rows)]
    spec = make_spec(tmp_path, tiny_model, rows)
    found = json.loads(Path(run_evaluation(spec, Recorder()).artifacts["evidence"]).read_text())
    assert found["result"] == "equal"
    assert found["system_fingerprint"] == str(load_engine(tiny_model).fingerprint())
    assert found["counts"] == {
        "prompts": 5,
        "equal": 5,
        "equal_to_model": 5,
        "different": 0,
        "refused": 1,
        "answers": 5 * 3 * 2,
    }
    digest = hashlib.sha256(Path(spec.prompts_path).read_bytes()).hexdigest()
    assert found["prompts"] == {"sha256": digest, "count": 6}
    assert found["answers"]["plain_sha256"] == found["answers"]["speculative_sha256"]
    assert found["sampling"] == {"greedy": 3, "sampled": 2, "max_tokens": 12, "seed_key": "job_0123"}
    assert found["model_sha256"] == inspect_folder(tiny_model).revision  # the catalog's revision of the model
    assert found["speculator_sha256"] is None
    assert found["build"]["versions"]["torch"] == torch.__version__


def test_the_report_and_the_evidence_say_whether_the_engine_is_exact(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = RowInvariance(False, "the product down gives a row other bits")
    monkeypatch.setattr("workers.inference.evaluation.check_row_invariance", lambda _: verdict)

    finished = run_evaluation(make_spec(tmp_path, tiny_model, chat_rows(3)), Recorder())

    evidence = json.loads(Path(finished.artifacts["evidence"]).read_text())
    for stated in (finished.result, evidence):
        assert (stated["exact"], stated["exact_reason"]) == (False, "the product down gives a row other bits")
    assert (finished.result["outputs_equal"], evidence["result"]) == (3, "equal")  # the answers were equal nevertheless


def test_grammars_of_held_out_prompts_end_with_the_end_token_of_the_engine(tmp_path: Path, tiny_model: Path) -> None:
    folder = model_with_another_end_token(tiny_model, tmp_path / "model")
    (other_end,) = Tokenizer.load(folder).eos_token_ids - load_engine(folder).eos_token_ids
    bias = {"logit_bias": {str(other_end): 100}}  # makes the other token likelier wherever the grammar allows it
    rows = [chat_row("row", "hello", structured_outputs={"regex": "ab"}, **bias)]

    finished = run_evaluation(make_spec(tmp_path, folder, rows), Recorder())

    assert finished.result["num_tokens"] == len("ab") + 1


def test_a_fingerprint_depends_on_the_order_and_the_content_of_the_files(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    original = fingerprint(tmp_path, [first, second])
    assert fingerprint(tmp_path, [second, first]) != original
    second.write_bytes(b"3")
    assert fingerprint(tmp_path, [first, second]) != original


def test_the_remaining_time_is_estimated_from_the_speed_at_the_current_concurrency() -> None:
    now, emit = 0.0, Recorder()
    reporter = ProgressReporter(emit, total=20, clock=lambda: now)
    for _ in range(10):
        now += 1.0
        reporter.count_answer()
    reporter.report_figures(1, {"speedup": 1.5})
    reporter.start_concurrency()
    for _ in range(5):
        now += 0.5  # faster at the next concurrency
        reporter.count_answer()
    metrics = [event.data for event in emit.of("metrics")]
    assert metrics[0] == {"eta_seconds": 18.0}  # reported after 2 s, when 18 of 20 answers remain
    assert metrics[-2] == {"concurrency": 1.0, "speedup": 1.5, "eta_seconds": 10.0}
    assert metrics[-1]["eta_seconds"] == 0.5 * 6  # reported when 6 answers remain, which take 0.5 s each


def test_progress_counts_the_answers_of_all_arms(tmp_path: Path, tiny_model: Path) -> None:
    emit = Recorder()
    run_evaluation(replace(make_spec(tmp_path, tiny_model, chat_rows(3)), repeats=2), emit)
    # 3 rows, 3 arms, 2 repeats and 2 concurrencies
    assert [event.done for event in emit.of("progress")] == list(range(1, 37))
    assert {event.total for event in emit.of("progress")} == {36}


class Interrupted(Exception):
    pass


def interrupted(spec: EvaluationSpec, folder: Path) -> EvaluationSpec:
    """Runs an evaluation until its first checkpoint, and copies this checkpoint to `folder`.

    Returns the spec with which a worker would continue the evaluation.
    """

    def emit(event: Event) -> None:
        if event.event == "checkpoint":
            raise Interrupted

    with pytest.raises(Interrupted):
        run_evaluation(spec, emit)
    staged = Path(shutil.copytree(Path(spec.checkpoint_dir) / "1", folder))
    return replace(spec, checkpoint_dir=str(staged))


def test_an_interrupted_evaluation_resumes_after_the_measured_concurrency(tmp_path: Path, tiny_model: Path) -> None:
    # The draft budget is fixed: an adaptive budget depends on measured times, so two runs would accept different
    # tokens.
    spec = replace(make_spec(tmp_path, tiny_model, chat_rows(3)), draft_budget=8)
    spec = interrupted(spec, tmp_path / "staged")
    (measured,) = json.loads((tmp_path / "staged" / "measurements.json").read_text())["measurements"]
    emit = Recorder()

    report = run_evaluation(spec, emit).result

    assert [event.done for event in emit.of("progress")] == list(range(10, 19))  # the checkpoint has 9 of 18 answers
    assert [point["concurrency"] for point in report["concurrencies"]] == [1, 4]
    (seconds,) = measured["arms"]["plain"]["seconds"]
    assert report["concurrencies"][0]["tokens_per_second_plain"] == round(36 / seconds, 3)
    assert (report["prompts_held_out"], report["outputs_equal"], report["num_tokens"]) == (3, 3, 36)
    undisturbed = run_evaluation(replace(spec, checkpoint_dir=str(tmp_path / "none")), Recorder()).result
    assert report["acceptance_rate_per_position"] == undisturbed["acceptance_rate_per_position"]


def test_a_resumed_evaluation_repeats_measurements_that_another_build_made(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = interrupted(make_spec(tmp_path, tiny_model, chat_rows(3)), tmp_path / "staged")
    monkeypatch.setattr("workers.inference.evaluation.build_identity", lambda: {"commit": "another"})
    emit = Recorder()

    run_evaluation(spec, emit)

    assert [event.done for event in emit.of("progress")] == list(range(1, 19))


def test_refused_rows_are_counted_and_other_rows_are_measured(tmp_path: Path, tiny_model: Path) -> None:
    rows = [*chat_rows(2), chat_row("bad", "x", temperature=9)]
    report = run_evaluation(make_spec(tmp_path, tiny_model, rows), Recorder()).result
    assert (report["prompts_held_out"], report["rows_refused"]) == (2, 1)


def test_prompts_without_a_usable_row_are_invalid_input(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(InvalidInputError) as raised:
        run_evaluation(make_spec(tmp_path, tiny_model, [chat_row("bad", "x", messages=[])]), Recorder())
    assert raised.value.code == "no_held_out_prompts"


def test_a_concurrency_of_zero_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(UserConfigError, match="at least 1"):
        run_evaluation(replace(make_spec(tmp_path, tiny_model, chat_rows(1)), concurrencies=(0,)), Recorder())


class AnswerFactory:
    """Makes answers and `ArmTotals` without an engine."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def answer(self, number: int, tokens: list[int], *, passes: int = 1, accepted: int = 0) -> RowAnswer:
        """Makes an answer that took `passes` verify passes. One of them accepted `accepted` tokens, the others none."""
        answer = RowAnswer(prepared(number, "hello", self._tokenizer), self._tokenizer)
        stats = SpeculationStats(
            num_spec_steps=passes,
            num_draft_tokens=4 * passes,
            num_accepted_draft_tokens=accepted,
            acceptance_histogram=[passes - 1, *[0] * (accepted - 1), 1] if accepted else [passes],
        )
        answer.push(StepOutput(str(number), tuple(tokens), None, FinishReason.LENGTH, stats))
        return answer

    def totals(self, *answers: RowAnswer, seconds: float) -> ArmTotals:
        return ArmTotals([sum(a.num_tokens for a in answers)], [seconds], list(answers))


def report_of(*measurements: Measurement, model_answers: dict[int, tuple[int, ...]] | None = None) -> dict[str, Any]:
    return evaluation_report(
        measurements,
        drafter="d",
        model="m",
        dtype="float32",
        weights="auto",
        engine={"max_concurrency": 4},
        device="cpu",
        max_tokens=None,
        repeats=1,
        rows_refused=0,
        row_invariance=EXACT,
        system_fingerprint="fp1.of.the.test",
        distribution=DistributionTest(2, 100, 3, 1.0, 0.5),
        economics=Economics(price_per_gpu_hour=3.6, training_seconds=100.0),
        model_answers=model_answers,
    )


@pytest.fixture(scope="module")
def factory(tiny_model: Path) -> AnswerFactory:
    return AnswerFactory(Tokenizer.load(tiny_model))


def test_a_divergence_is_reported_at_the_first_token_that_differs(factory: AnswerFactory) -> None:
    plain = factory.totals(factory.answer(0, [70, 71, 72]), factory.answer(1, [70, 71, 72]), seconds=1.0)
    drafted = factory.totals(factory.answer(0, [70, 71, 72]), factory.answer(1, [70, 99, 72]), seconds=0.5)
    report = report_of(Measurement(1, plain, plain, drafted))
    assert report["outputs_equal"] == 1
    assert report["first_divergences"] == [{"custom_id": "row-1", "position": 1}]
    assert report["speedup"] == 2.0


def test_a_shorter_answer_diverges_at_its_end(factory: AnswerFactory) -> None:
    plain = factory.totals(factory.answer(0, [70, 71, 72]), seconds=1.0)
    drafted = factory.totals(factory.answer(0, [70, 71]), seconds=1.0)
    report = report_of(Measurement(1, plain, plain, drafted))
    assert report["first_divergences"] == [{"custom_id": "row-0", "position": 2}]


def test_a_plain_answer_that_changes_with_concurrency_counts_as_different(factory: AnswerFactory) -> None:
    original = factory.totals(factory.answer(0, [70, 71]), seconds=1.0)
    changed = factory.totals(factory.answer(0, [70, 72]), seconds=1.0)
    report = report_of(Measurement(1, original, original, original), Measurement(4, changed, changed, original))
    assert report["outputs_equal"] == 0


def test_a_report_with_an_adapter_also_compares_with_the_model_without_the_adapter(factory: AnswerFactory) -> None:
    answers = factory.totals(factory.answer(0, [70, 71]), factory.answer(1, [70, 71, 72, 73]), seconds=1.0)
    of_the_model = {0: (70, 71), 1: (70, 99, 72, 73)}

    report = report_of(Measurement(1, answers, answers, answers), model_answers=of_the_model)

    assert (report["equal_to"], report["outputs_equal"]) == ("model_and_adapter", 2)
    assert report["outputs_equal_to_model"] == 1
    assert report["tokens_equal_to_model"] == 0.5  # of 6 tokens, 2 of the first answer and 1 of the second
    plain = report_of(Measurement(1, answers, answers, answers))
    assert (plain["equal_to"], plain["outputs_equal_to_model"], plain["tokens_equal_to_model"]) == ("model", 2, 1.0)


def test_looping_answers_are_counted_and_excluded_from_the_figures_without_loops(factory: AnswerFactory) -> None:
    normal = factory.answer(0, list(range(70, 90)), passes=10, accepted=1)
    looping = factory.answer(1, [70, 71] * 20, passes=10, accepted=5)
    totals = factory.totals(normal, looping, seconds=1.0)
    report = report_of(Measurement(1, totals, totals, totals))
    assert report["looping_answers"] == 1
    assert report["acceptance_length"] == 1 + (1 + 5) / 20  # accepted draft tokens / passes of both answers
    assert report["acceptance_length_without_loops"] == 1 + 1 / 10
    assert report["acceptance_rate_per_position_without_loops"] == [0.1]


def test_the_figures_without_loops_are_none_if_all_answers_loop(factory: AnswerFactory) -> None:
    totals = factory.totals(factory.answer(0, [70, 71] * 20), seconds=1.0)
    report = report_of(Measurement(1, totals, totals, totals))
    assert report["looping_answers"] == 1
    assert report["acceptance_length_without_loops"] is None


def test_the_result_in_the_evidence_is_different_if_one_answer_differs(
    factory: AnswerFactory, tmp_path: Path, tiny_model: Path
) -> None:
    answers = [factory.answer(number, [70, 71, 72]) for number in range(3)]
    plain = factory.totals(*answers, seconds=1.0)
    drafted = factory.totals(*answers[:2], factory.answer(2, [70, 71, 73]), seconds=1.0)
    measurements = [Measurement(1, plain, plain, drafted)]
    spec = make_spec(tmp_path, tiny_model, chat_rows(3))
    found = evidence(spec, [answer.request for answer in answers], measurements, report_of(*measurements))
    assert found["result"] == "different"
    assert found["counts"] == {
        "prompts": 3,
        "equal": 2,
        "equal_to_model": 2,
        "different": 1,
        "refused": 0,
        "answers": 9,
    }
    assert found["answers"]["plain_sha256"] != found["answers"]["speculative_sha256"]


def test_each_concurrency_has_costs_and_a_break_even_point(factory: AnswerFactory) -> None:
    plain = factory.totals(factory.answer(0, [70] * 10), seconds=1.0)
    drafted = factory.totals(factory.answer(0, [70] * 10), seconds=0.5)
    (point,) = report_of(Measurement(1, plain, plain, drafted))["concurrencies"]
    assert point["cost_per_million_tokens_plain"] == 100.0  # 0.001 USD per second, 10 tokens per second
    assert point["cost_per_million_tokens_speculative"] == 50.0
    # Each token saves 0.05 s, and training took 100 s; an answer has 10 tokens.
    assert (point["break_even_tokens"], point["break_even_requests"]) == (2000, 200)


def test_the_acceptance_rate_of_a_position_is_the_share_of_passes_that_accepted_a_token_there(
    factory: AnswerFactory,
) -> None:
    totals = factory.totals(factory.answer(0, [70] * 4, passes=2, accepted=2), seconds=1.0)
    assert report_of(Measurement(1, totals, totals, totals))["acceptance_rate_per_position"] == [0.5, 0.5]
