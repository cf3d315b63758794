"""`lm_eval run --model local-completions --model_args model=NAME,base_url=http://HOST/v1/completions,tokenizer=FOLDER`.

Also `tokenizer_backend=huggingface`, and the key in `OPENAI_API_KEY`.
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml
from checks import BASE_URL, MODEL, TOKENIZER, raised, run

LM_EVAL = str(Path(sys.executable).with_name("lm_eval"))
ROWS = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome", "a very small town in Norway"], "answer": 0},
    {"question": "Two and two is", "choices": ["four", "twenty-two"], "answer": 0},
    {"question": "Água é", "choices": ["wet", "🔥"], "answer": 0},
]
MULTIPLE_CHOICE = {"output_type": "multiple_choice", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}"}


def evaluated(name, task, **arguments):
    """Returns the aggregated results of a task over ROWS, and the samples."""
    folder = Path(name)
    folder.mkdir()
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows.resolve())}}}
    task = {"task": name, "test_split": "test", "doc_to_text": "{{question}}", **data, **task}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    given = {"model": MODEL, "base_url": f"{BASE_URL}/completions", "tokenizer": TOKENIZER} | arguments
    command = [LM_EVAL, "run", "--model", "local-completions", "--tasks", name, "--include_path", str(folder)]
    command += ["--model_args", ",".join(f"{key}={value}" for key, value in given.items())]
    command += ["--output_path", str(folder / "out"), "--log_samples"]
    subprocess.run(command, check=True)
    (results,) = (folder / "out").rglob("results_*.json")
    (samples,) = (folder / "out").rglob("samples_*.jsonl")
    lines = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    return json.loads(results.read_text())["results"][name], lines


def check_loglikelihood():
    """log-likelihoods of given answers, equal to the engine's own"""
    results, samples = evaluated("likelihood", MULTIPLE_CHOICE, tokenizer_backend="huggingface")
    assert 0 <= results["acc,none"] <= 1
    pairs = []
    for sample in samples:
        requests = [sample["arguments"][key] for key in sorted(sample["arguments"])]
        for request, response in zip(requests, sample["resps"], strict=True):
            (value, is_greedy) = response[0]
            pairs.append([request["arg_0"], request["arg_1"], float(value), str(is_greedy) == "True"])
    return pairs


def check_generate_until():
    """generated answers with stop strings"""
    generation = {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 16, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    }
    _, samples = evaluated("generation", generation, tokenizer_backend="huggingface", num_concurrent=2)
    answers = [sample["resps"][0][0] for sample in samples]
    assert len(answers) == len(ROWS)
    assert all(answers)
    assert not any("\n" in answer for answer in answers)


def check_errors():
    """errors"""
    refused = {"tokenizer_backend": "huggingface", "model": "unknown", "max_retries": 1}
    raised(subprocess.CalledProcessError, lambda: evaluated("refused", MULTIPLE_CHOICE, **refused))


if __name__ == "__main__":
    run(globals())
