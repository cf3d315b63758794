"""`guidellm run --backend kind=openai_http,target=http://HOST,model=NAME,api_key=sk_live_...`: without `/v1`."""

import json
import subprocess
import sys
from pathlib import Path

from checks import API_KEY, BASE_URL, MODEL, TOKENIZER, run

GUIDELLM = str(Path(sys.executable).with_name("guidellm"))
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 4, 32, 8


def benchmark(name, api_key=API_KEY, **backend):
    """Returns the report of a short benchmark."""
    target = {"kind": "openai_http", "target": BASE_URL.removesuffix("/v1"), "model": MODEL, "api_key": api_key}
    report = Path(f"{name}.json")
    command = [GUIDELLM, "run", "--disable-console-interactive"]
    command += ["--backend", ",".join(f"{key}={value}" for key, value in (target | backend).items())]
    command += ["--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={NUM_REQUESTS}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"]
    command += ["--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}", "--output", f"kind=json,path={report}"]
    subprocess.run(command, check=True)
    return json.loads(report.read_text())["benchmarks"][0]


def assert_complete(result):
    """Checks that each request succeeded and that the reported tokens are those that were asked for."""
    requests = result["requests"]
    assert len(requests["successful"]) == NUM_REQUESTS
    assert not requests["errored"]
    for request in requests["successful"]:
        assert request["output_metrics"]["text_tokens"] == OUTPUT_TOKENS, request["output_metrics"]
        assert request["input_metrics"]["text_tokens"] >= PROMPT_TOKENS, request["input_metrics"]


def check_chat():
    """a benchmark of streamed chat, with the tokens that the endpoint counted"""
    assert_complete(benchmark("chat"))


def check_completions():
    """a benchmark of completions that are not streamed"""
    assert_complete(benchmark("completions", request_format="/v1/completions", stream="false"))


def check_errors():
    """errors, which the report counts"""
    totals = benchmark("refused", api_key="sk_live_unknown")["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (0, NUM_REQUESTS)


if __name__ == "__main__":
    run(globals())
