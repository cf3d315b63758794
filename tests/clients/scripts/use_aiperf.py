"""`aiperf profile --url http://HOST --model NAME --api-key sk_live_... --streaming --use-server-token-count`."""

import json
import os
import subprocess
import sys
from pathlib import Path

from checks import API_KEY, BASE_URL, MODEL, TOKENIZER, raised, run

AIPERF = str(Path(sys.executable).with_name("aiperf"))
NUM_REQUESTS, OUTPUT_TOKENS = 4, 24


def profile(name, *options, api_key=API_KEY):
    """Returns the exported summary of a short run."""
    command = [AIPERF, "profile", "--url", BASE_URL.removesuffix("/v1"), "--model", MODEL, "--api-key", api_key]
    command += ["--tokenizer", TOKENIZER, "--request-count", str(NUM_REQUESTS), "--concurrency", "2"]
    command += ["--prompt-input-tokens-mean", "32", "--prompt-output-tokens-mean", str(OUTPUT_TOKENS)]
    command += ["--output-artifact-dir", name, "--use-server-token-count", *options]
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run(command, check=True, env=environment)  # offline, aiperf does not find a tokenizer in a folder
    (summary,) = Path(name).rglob("profile_export_aiperf.json")
    return json.loads(summary.read_text())


def assert_complete(summary):
    assert summary["request_count"]["avg"] == NUM_REQUESTS, summary
    assert 0 < summary["output_sequence_length"]["avg"] <= OUTPUT_TOKENS
    assert summary["input_sequence_length"]["avg"] >= 32


def check_streamed_chat():
    """a profile of streamed chat, with the tokens that the endpoint counted and its acceptance statistics"""
    summary = profile("streamed", "--streaming", "--endpoint-type", "chat")
    assert_complete(summary)
    assert summary["total_spec_decode_steps"]["avg"] == NUM_REQUESTS * summary["spec_decode_steps"]["avg"] > 0


def check_completions():
    """a profile of completions that are not streamed"""
    assert_complete(profile("completions", "--endpoint-type", "completions"))


def check_errors():
    """errors"""
    raised(subprocess.CalledProcessError, lambda: profile("refused", "--streaming", api_key="sk_live_unknown"))


if __name__ == "__main__":
    run(globals())
