#!/usr/bin/env bash
# Runs the tests and benchmarks that need an NVIDIA GPU, in less than 9 minutes.
#
#   benchmarks/gpu.sh [FOLDER]        writes results to FOLDER/<GPU's name>; FOLDER is benchmarks/results by default
#
# Environment variables:
#   PYTHON             interpreter with torch, triton, transformers and pytest (default: python3)
#   MODEL              folder of a real model for the part "speculation", which is left out without it
#   PROMPTS            file of prompts for this model
#   SPECULATORS        folders of speculators that were trained for this model, separated by spaces
#   SLIPSTREAM_COMMIT  the commit to record if the tree has no Git history
#   LOGS               folder for the logs of the parts (default: build/gpu)
#
# Each part has its own time limit. If a part fails or exceeds its limit, the end of its log is printed and the other
# parts still run. At the end, all result tables except that of the kernels are printed. The exit code is 1 if a part
# failed.
set -u
cd "$(dirname "$0")/.."

folder=${1:-benchmarks/results}
python=${PYTHON:-python3}
logs=${LOGS:-build/gpu}
failed=()
mkdir -p "$folder" "$logs"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false

# part NAME SECONDS COMMAND...: runs a part with a time limit
part() {
    local name=$1 seconds=$2 started=$SECONDS code=0
    shift 2
    timeout --kill-after=10 "$seconds" "$@" >"$logs/$name.log" 2>&1 || code=$?
    echo "$name: exit code $code, $((SECONDS - started)) of $seconds s"
    if [ "$code" -ne 0 ]; then
        failed+=("$name")
        tail -n 15 "$logs/$name.log"
    fi
}

# Kernels take longer to compile than to run. These processes compile the kernels while the tests run, so that the part
# "kernels" finds them in the compiler's cache. Their exit codes are ignored, because "kernels" repeats their checks.
warmers=()
for share in 0 1 2 3; do
    timeout --kill-after=10 90 "$python" -m benchmarks.kernels --warm "$share/4" >"$logs/warm-$share.log" 2>&1 &
    warmers+=($!)
done
workers=()
if "$python" -c 'import xdist' 2>/dev/null; then workers=(-n 8); fi
part tests 95 "$python" -m pytest -p no:cacheprovider -m gpu "${workers[@]}" \
    --junitxml="$logs/tests.xml" tests/kernels tests/engine/graph_decoding tests/gpu
wait "${warmers[@]}"

part kernels 100 "$python" -m benchmarks.kernels --device cuda --results "$folder" --minutes 1.3
part decode-8b 165 "$python" -m benchmarks.decode --device cuda --shape llama-3.1-8b --results "$folder" --minutes 2.2
part decode-1b 80 "$python" -m benchmarks.decode --device cuda --shape llama-3.2-1b --results "$folder" --minutes 1.0
part decode-qwen 50 "$python" -m benchmarks.decode --device cuda --shape qwen3-8b --results "$folder" --minutes 0.4
if [ -n "${MODEL:-}" ]; then
    options=(--model "$MODEL")
    if [ -n "${PROMPTS:-}" ]; then options+=(--prompts "$PROMPTS"); fi
    for speculator in ${SPECULATORS:-}; do options+=(--speculator "$speculator"); done
    part speculation 45 "$python" -m benchmarks.decode --device cuda "${options[@]}" --results "$folder" --minutes 0.6
else
    echo "speculation: left out, because MODEL is not set"
fi

echo "failed: ${failed[*]:-none}; ${SECONDS} s in all"
"$python" -m benchmarks.gpu.table --short "$folder"/*/
[ ${#failed[@]} -eq 0 ]
