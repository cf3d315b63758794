"""`python -m engine.server` serves one model with OpenAI's chat and completions API.

Once the server can generate tokens, it prints one JSON line: {"event": "ready", "model", "host", "port", ...}. If the
model can't be loaded, it prints {"event": "failed", "code", "message"} instead and exits with status 1.

The environment variable SLIPSTREAM_ENGINE_TOKEN contains the clients' bearer token; without it, clients need no token.
SLIPSTREAM_ENGINE_OPERATOR_TOKEN contains a different token for the operator; without it there are no operator routes.
SLIPSTREAM_ENGINE_KEY contains a private key and its certificate in PEM; with it, the server answers only over TLS.
"""

import os

# OpenMP reads this variable when torch is imported. Waiting threads that spin would take cores from working threads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import argparse
import json
import logging
import socket
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from engine.config import WEIGHT_FORMATS, EngineConfig
from engine.drafters.base import Drafter
from engine.errors import AdapterNotLoadable, ModelNotLoadable, SpeculatorNotLoadable
from engine.load import check_group, follow_engine, load_drafter, load_engine
from engine.openai.tool_calls import CallForm
from engine.planned import fit
from engine.server.app import ServerApp, ServerConfig
from engine.server.log import log_to_stderr
from engine.server.process import Process
from engine.server.tls import server_context
from engine.sleep import Sleeper
from engine.tensor_parallel.parent import LOST_GROUP, PARENT_MODULE, group_rank, in_group
from engine.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

TOKEN_VARIABLE = "SLIPSTREAM_ENGINE_TOKEN"  # noqa: S105 - the variable's name
OPERATOR_TOKEN_VARIABLE = "SLIPSTREAM_ENGINE_OPERATOR_TOKEN"  # noqa: S105 - the variable's name
KEY_VARIABLE = "SLIPSTREAM_ENGINE_KEY"


def main() -> None:
    args = _arguments()
    log_to_stderr()
    if args.tensor_parallel > 1 and not in_group():
        _become_parent(args)
    if in_group() and group_rank() > 0:
        _follow(args)
    tls = _tls()
    listener = _listen(args.host, args.port)
    app = _load(args)
    host, port = listener.getsockname()[:2]
    ready = {
        "event": "ready",
        "model": args.model_name,
        "drafter": args.drafter,
        "host": host,
        "port": port,
        "weights": app.async_engine.worker.engine.weights_report.as_json(),
        "max_seq_len": app.async_engine.worker.engine.max_seq_len,
        "pid": os.getpid(),
    }

    def announce(problem: str | None) -> None:
        if problem is not None:
            _fail("engine_unavailable", problem)
        print(json.dumps(ready), flush=True)

    Process(app, drain_seconds=args.drain_seconds, announce=announce, tls=tls).run_until_stopped(listener)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m engine.server", description="Serve one model with OpenAI's API.")
    parser.add_argument("--model-dir", type=Path, required=True, help="folder of safetensors, config and tokenizer")
    parser.add_argument("--model-name", required=True, help="the name of the model in requests")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="0: any free port, which the ready line names")
    parser.add_argument("--drafter", default="none", help="none, or kinds joined by +, such as medusa+suffix")
    parser.add_argument("--speculator-dir", type=Path, help="folder of a trained speculator")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME=FOLDER", help="a LoRA adapter to serve")
    parser.add_argument("--speculator-root", type=Path, help="folder from which operators may load speculators")
    parser.add_argument("--adapter-root", type=Path, help="folder from which operators may load LoRA adapters")
    parser.add_argument("--tool-call-parser", choices=list(CallForm), help="default: the format in the chat template")
    parser.add_argument(
        "--generation-config",
        choices=("model", "none"),
        default="model",
        help="none: sampling defaults are OpenAI's instead of those in generation_config.json",
    )
    parser.add_argument("--max-batch-size", type=int, default=16)
    parser.add_argument("--max-seq-len", type=int, help="default: the model's maximum")
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument("--memory-bytes", type=int, help="default: a GPU's free memory; on a CPU unlimited")
    memory.add_argument("--memory-share", type=float, help="memory as a share of the device's memory, such as 0.5")
    parser.add_argument("--kv-cache-bytes", type=int, help="default: what fits into the memory; on a CPU 1 GiB")
    parser.add_argument("--max-waiting", type=int, default=64, help="waiting choices; more are refused with 429")
    parser.add_argument("--max-body-bytes", type=int, default=8 * 1024 * 1024)
    parser.add_argument("--drain-seconds", type=float, default=30.0)
    parser.add_argument("--dtype", default="auto", help="auto, float32 or bfloat16")
    parser.add_argument("--weights", default="auto", help=f"one of {', '.join(WEIGHT_FORMATS)}; auto: as published")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="processes that share the model; on CPUs only")
    parser.add_argument("--kv-dtype", default="auto", help="auto, bf16 or float32; it must be the model's dtype")
    parser.add_argument("--draft-budget", type=int, help="nodes per sequence and step; default: from measured costs")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    return parser.parse_args()


def _become_parent(args: argparse.Namespace) -> NoReturn:
    """Checks the arguments, and replaces this process by the parent of the processes that share the model."""
    try:
        check_group(args.model_dir, _config_without_plan(args))
        _engine_config(args)  # raises if the memory is too small
    except ModelNotLoadable as error:
        _fail(error.code, str(error))
    except ValueError as error:
        _fail("invalid_argument", str(error))
    command = [sys.executable, "-m", PARENT_MODULE, str(args.tensor_parallel), "engine.server", *sys.argv[1:]]
    os.execv(sys.executable, command)  # noqa: S606  # no shell wanted


def _follow(args: argparse.Namespace) -> NoReturn:
    try:
        follow_engine(args.model_dir, _config_without_plan(args))
    except ModelNotLoadable as error:  # rank 0 fails in the same way and reports it
        logger.error("the rank's part of the model can't be loaded: %s", error)
        sys.exit(LOST_GROUP)


def _tls() -> ssl.SSLContext | None:
    if not (text := os.environ.get(KEY_VARIABLE)):
        return None
    try:
        return server_context(text)
    except ssl.SSLError as error:
        _fail("invalid_certificate", f"{KEY_VARIABLE} is not a private key with its certificate: {error}")


def _listen(host: str, port: int) -> socket.socket:
    """Binds the port before the model is loaded, so that a port in use is reported at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        _fail("address_in_use", f"cannot listen on {host}:{port}: {error}")
    return listener


def _load(args: argparse.Namespace) -> ServerApp:
    try:
        config = _engine_config(args)
        engine = load_engine(args.model_dir, drafter=args.drafter, speculator_dir=args.speculator_dir, config=config)
        tokenizer = Tokenizer.load(args.model_dir, use_generation_config=args.generation_config == "model")
        for argument in args.adapter:
            name, _, folder = argument.partition("=")
            engine.adapters.load(name, Path(folder))
    except AdapterNotLoadable as error:
        _fail("adapter_not_loadable", str(error))
    except SpeculatorNotLoadable as error:
        _fail("speculator_not_loadable", str(error))
    except ModelNotLoadable as error:
        _fail(error.code, str(error))
    except OSError as error:
        _fail("model_not_loadable", str(error))
    except ValueError as error:
        _fail("invalid_argument", str(error))

    def load(kind: str, folder: Path | None) -> Drafter:
        return load_drafter(kind, engine.model, folder, model_dir=args.model_dir)

    try:
        return ServerApp(engine, tokenizer, _config(args), load_drafter=load, sleeper=Sleeper(engine))
    except ValueError as error:
        _fail("invalid_argument", str(error))


def _config_without_plan(args: argparse.Namespace) -> EngineConfig:
    """Returns the engine's configuration, in which the size of the KV cache is not planned yet."""
    return EngineConfig(
        max_batch_size=args.max_batch_size,
        max_seq_len=args.max_seq_len,
        dtype=args.dtype,
        weights=args.weights,
        kv_dtype=args.kv_dtype,
        draft_budget=args.draft_budget,
        device=args.device,
        tensor_parallel=args.tensor_parallel,
    )


def _engine_config(args: argparse.Namespace) -> EngineConfig:
    """Returns the engine's configuration, with the given size of the KV cache or the size that fits (`fit`)."""
    config = _config_without_plan(args)
    if args.kv_cache_bytes is not None:
        return replace(config, kv_cache_bytes=args.kv_cache_bytes)
    return fit(
        config,
        args.model_dir,
        memory_bytes=args.memory_bytes,
        memory_share=args.memory_share,
        speculator_dir=args.speculator_dir,
        adapter_dirs=[Path(argument.partition("=")[2]) for argument in args.adapter],
        drafter=args.drafter,
    )


def _config(args: argparse.Namespace) -> ServerConfig:
    return ServerConfig(
        model_name=args.model_name,
        max_batch_size=args.max_batch_size,
        max_waiting=args.max_waiting,
        max_body_bytes=args.max_body_bytes,
        token=os.environ.get(TOKEN_VARIABLE) or None,
        operator_token=os.environ.get(OPERATOR_TOKEN_VARIABLE) or None,
        speculator_root=args.speculator_root,
        adapter_root=args.adapter_root,
        speculator_dir=args.speculator_dir,
        call_form=args.tool_call_parser and CallForm(args.tool_call_parser),
    )


def _fail(code: str, message: str) -> NoReturn:
    print(json.dumps({"event": "failed", "code": code, "message": message}), flush=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
