"""Generates hostile requests that a client may send by mistake or on purpose. The same seed gives the same request.

An `Attack` consists of the bytes to send and the moment at which the client disconnects. The server may return any
response except an internal error.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from engine.openai import options, output_format, tools
from tests.engine.openai.tool_model import tool
from tests.engine.server.child import OPERATOR_TOKEN, TOKEN

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_PATHS: tuple[str, ...] = (CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/v1/speculator", "/v1/load_lora_adapter")
_PATHS += ("/v1/unload_lora_adapter", "/v1/models", "/health", "/metrics", "/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    name: str
    sent: tuple[bytes, ...]  # the pieces of the request; the client pauses between them
    read_bytes: int | None = None  # disconnect after this many bytes; None: read the whole response
    is_complete: bool = True  # False: the server may wait for more bytes of the request
    canary: bool = False  # whether the request is valid, so that it must succeed or be refused by a full queue


Body = dict[str, Any]
Rng = random.Random


def attack(seed: int) -> Attack:
    rng = random.Random(seed)
    make = rng.choice(_KINDS)
    return make(rng)


def request(
    body: bytes,
    *,
    path: str = CHAT,
    method: str = "POST",
    token: str | None = None,
    headers: str = "",
    close: bool = True,
) -> bytes:
    """Builds an HTTP request. Its length and token are correct, unless the arguments override them."""
    token = token or (OPERATOR_TOKEN if "adapter" in path or "speculator" in path else TOKEN)
    lines = [f"{method} {path} HTTP/1.1", "host: x", f"authorization: Bearer {token}"]
    lines += ["content-type: application/json"] if "content-type" not in headers else []
    lines += [f"content-length: {len(body)}"] if "content-length" not in headers and "chunked" not in headers else []
    lines += ["connection: close"] if close else []
    head = "\r\n".join(lines) + "\r\n" + headers + "\r\n"
    return head.encode("latin-1", "replace") + body


def good_chat(rng: Rng) -> Body:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": rng.randint(1, 8), "temperature": 0}


def good_body(rng: Rng, path: str) -> Body:
    if path == COMPLETIONS:
        return {"prompt": "hello", "max_tokens": rng.randint(1, 8), "temperature": 0}
    if path == "/tokenize":
        return {"prompt": "hello"} if rng.random() < 0.5 else {"messages": good_chat(rng)["messages"]}
    if path == "/detokenize":
        return {"tokens": [70, 71]}
    if path == "/v1/speculator":
        return {"drafter": rng.choice(["none", "ngram"])}
    if path.endswith("adapter"):
        return {"lora_name": "a", "lora_path": "a"}
    return good_chat(rng)


def _json(body: Any) -> bytes:
    return json.dumps(body).encode()


def _junk(rng: Rng, depth: int = 0) -> Any:
    """Returns a value of any type and size."""
    simple: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: rng.choice([0, -1, 1, 2**31, 2**53 + 1, 2**64, -(2**63), 10**30]),
        lambda: rng.choice([0.0, -0.5, 1e308, 1e-320, 2.5]),
        lambda: rng.choice(["", "auto", "\x00", "\ud800", "💥" * 9, "../../etc/passwd", "a" * 5000, "-1", "NaN"]),
        lambda: "".join(chr(rng.randint(1, 0xD7FF)) for _ in range(rng.randint(0, 40))),
    ]
    if depth < 3 and rng.random() < 0.4:
        inner = [_junk(rng, depth + 1) for _ in range(rng.randint(0, 4))]
        return inner if rng.random() < 0.5 else {str(_junk(rng, 3))[:20]: value for value in inner}
    return rng.choice(simple)()


_NAMES = sorted(  # names of body fields that some route reads, and a name that no route knows
    options.SAMPLING
    | output_format.NAMES
    | tools.NAMES
    | {"messages", "prompt", "model", "chat_template_kwargs", "top_logprobs", "max_completion_tokens", "metadata"}
    | {"echo", "best_of", "suffix", "functions", "tokens", "add_special_tokens", "return_token_strs"}
    | {"add_generation_prompt", "drafter", "path", "lora_name", "lora_path", "whatever"}
)


def _wrong_types(rng: Rng) -> Attack:
    path = rng.choice(_PATHS[:7])  # the routes that accept a body
    body = good_body(rng, path)
    for _ in range(rng.randint(1, 3)):
        body[rng.choice(_NAMES)] = _junk(rng)
    return Attack(name="wrong types", sent=(request(_json(body), path=path),))


def _huge_numbers(rng: Rng) -> Attack:
    name = rng.choice(["n", "max_tokens", "min_tokens", "best_of", "top_k", "logprobs", "top_logprobs", "seed"])
    body = good_chat(rng) | {name: rng.choice([16, 17, 1000, 10**9, 2**63, 10**400, -1, 1e300])}
    if name.endswith("logprobs"):
        body |= {"logprobs": True, "n": 16, "max_tokens": None}
    return Attack(name="huge numbers", sent=(request(_json(body)),), read_bytes=rng.choice([None, 50]))


def _endless_stops(rng: Rng) -> Attack:
    stop = rng.choice([["x"] * 10_000, ["y" * 257], [""] * 3, "z" * 100_000, ["ab" * 128] * 16, [["a"]], ["\ud800"]])
    ids = rng.choice([None, list(range(5000)), [-1], [2**70], ["a"]])
    return Attack(name="endless stops", sent=(request(_json(good_chat(rng) | {"stop": stop, "stop_token_ids": ids})),))


def _broken_json(rng: Rng) -> Attack:
    whole = bytearray(_json(good_chat(rng) | {"tools": [tool("f")]}))
    if rng.random() < 0.5:
        whole = whole[: rng.randrange(len(whole))]
    else:
        for _ in range(rng.randint(1, 5)):
            whole[rng.randrange(len(whole))] = rng.randrange(256)
    return Attack(name="broken JSON", sent=(request(bytes(whole)),))


def _deep_nesting(rng: Rng) -> Attack:
    depth = rng.choice([50, 90, 110, 500, 990, 5000, 100_000])
    bracket = rng.choice(['{"a":', "[", '{"items":', '{"properties":{"a":'])
    deep = bracket * depth + "1" + ("]" if bracket == "[" else "}" * bracket.count("{")) * depth
    field = rng.choice(['"tools":[{"function":{"name":"f","parameters":%s}}]', '"stop":%s', '"metadata":%s'])
    field = rng.choice(
        [field, '"chat_template_kwargs":%s', '"response_format":{"type":"json_schema","json_schema":%s}']
    )
    body = '{"messages":[{"role":"user","content":"x"}],"max_tokens":1,' + field % deep + "}"
    return Attack(name="deep nesting", sent=(request(body.encode()),))


def _giant_bodies(rng: Rng) -> Attack:
    size = rng.choice([100_000, 262_144, 1_000_000])
    content = rng.choice(["x", "é", " ", "\n", "<|end|>"]) * size
    body = _json(good_chat(rng) | {"messages": [{"role": "user", "content": content}]})
    if rng.random() < 0.3:
        chunks = b"".join(
            b"%x\r\n%s\r\n" % (len(body[i : i + 50_000]), body[i : i + 50_000]) for i in range(0, size, 50_000)
        )
        return Attack(
            name="giant bodies", sent=(request(chunks + b"0\r\n\r\n", headers="transfer-encoding: chunked\r\n"),)
        )
    if rng.random() < 0.3:
        return Attack(
            name="giant bodies", sent=(request(b"{}", headers=f"content-length: {10 ** rng.randint(6, 30)}\r\n"),)
        )
    return Attack(name="giant bodies", sent=(request(body),))


def _bad_unicode(rng: Rng) -> Attack:
    body = rng.choice(
        [
            b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
            b'{"messages":[{"role":"user","content":"\\ud800"}]}',
            b'{"prompt":"\xc0\x80","max_tokens":1}',
            b'{"\\udfff":1}',
            _json(good_chat(rng)).decode().encode("utf-16"),
            b"\xef\xbb\xbf" + _json(good_chat(rng)),
            _json(good_chat(rng) | {"messages": [{"role": "user", "content": "\x00\u202e\ufeff\U0010ffff" * 50}]}),
            _json(good_chat(rng) | {"tools": [tool("f", description="\x00")], "tool_choice": "auto"}),
        ]
    )
    return Attack(name="bad unicode", sent=(request(body, path=rng.choice([CHAT, COMPLETIONS])),))


def _wrong_headers(rng: Rng) -> Attack:
    headers = rng.choice(
        [
            "content-type: text/plain\r\n",
            "content-type: multipart/form-data; boundary=x\r\n",
            "content-encoding: gzip\r\n",
            "content-length: -5\r\n",
            "content-length: 5\r\ncontent-length: 7\r\n",
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip\r\n",
            "expect: 100-continue\r\n",
            "upgrade: websocket\r\nconnection: upgrade\r\n",
            "x-request-id: \x7f\xe9\r\n",
            f"x-long: {'a' * rng.choice([1000, 70_000])}\r\n",
            "a: b\r\n" * 2000,
            " folded: line\r\n",
            "no colon\r\n",
            "x: \x00\r\n",
        ]
    )
    return Attack(name="wrong headers", sent=(request(_json(good_chat(rng)), headers=headers),), is_complete=False)


def _hang_up(rng: Rng) -> Attack:
    body = good_chat(rng) | {"max_tokens": 500, "ignore_eos": True, "n": rng.randint(1, 4)}
    body |= {"stream": rng.random() < 0.7}
    body |= {"logprobs": True, "top_logprobs": 20} if rng.random() < 0.3 else {}
    read = rng.choice([0, 1, 200, 3000])
    return Attack(name="hang up", sent=(request(_json(body)),), read_bytes=read)


def _half_sent(rng: Rng) -> Attack:
    whole = request(_json(good_chat(rng)))
    cut = rng.randrange(len(whole))
    return Attack(name="half sent", sent=(whole[: cut // 2], whole[cut // 2 : cut]), read_bytes=0)


def _slow(rng: Rng) -> Attack:
    whole = request(_json(good_chat(rng) | {"stream": True}))
    cuts = sorted(rng.randrange(len(whole)) for _ in range(3))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    return Attack(name="slow", sent=tuple(piece for piece in pieces if piece))


def _garbage(rng: Rng) -> Attack:
    first = request(_json(good_chat(rng)), close=False)
    noise = rng.randbytes(rng.randint(1, 5000))
    pipelined = rng.choice(
        [first + noise, first * 5 + noise, noise, b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01" + noise]
    )
    return Attack(name="garbage", sent=(pipelined,), read_bytes=rng.choice([0, 4000]), is_complete=False)


def _wrong_routes(rng: Rng) -> Attack:
    method = rng.choice(
        ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE", "CONNECT", "FOO", "post", "G" * 900]
    )
    path = rng.choice(
        [*_PATHS, "/", "//", "/v1/../v1/models", "/%ff%00", "/v1/models/" + "%F0" * 200, "*", "/" + "a" * 9000]
    )
    token = rng.choice([None, "wrong", "", "é" * 20, TOKEN[:-1], OPERATOR_TOKEN])
    return Attack(name="wrong routes", sent=(request(b"", path=path, method=method, token=token),))


def _hostile_grammars(rng: Rng) -> Attack:
    options = rng.choice(
        [
            {"regex": "(a{1,999}){1,999}"},
            {"regex": "(" * 500},
            {"regex": "(\\w+\\s?)+$"},
            {"regex": "[z-a]"},
            {"grammar": "root ::= root"},
            {"grammar": "root ::= missing"},
            {"grammar": "x"},
            {"json": {"$ref": "#"}},
            {"json": {"type": "unheard"}},
            {"json": {"enum": []}},
            {"json": {"type": "string", "minLength": 10**9}},
            {"json": {"pattern": "(?=a)b", "type": "string"}},
            {"json": _junk(rng)},
            {"choice": ["a"] * 5000},
            {"choice": ["\x00", "💥"]},
        ]
    )
    return Attack(name="hostile grammars", sent=(request(_json(good_chat(rng) | {"structured_outputs": options})),))


def _hostile_tools(rng: Rng) -> Attack:
    definitions = [
        tool(rng.choice(["f", "a" * 64, '"}{', ""]), parameters=_junk(rng)) for _ in range(rng.choice([1, 3, 200]))
    ]
    body = good_chat(rng) | {
        "tools": definitions,
        "tool_choice": rng.choice(["auto", "required", "none", {"type": "function"}]),
    }
    call = {
        "id": "x",
        "type": "function",
        "function": {"name": "f", "arguments": rng.choice(["{}", "{", "[]", '{"a":' * 999])},
    }
    body["messages"] = [
        *body["messages"],
        {"role": "assistant", "tool_calls": [call, _junk(rng)][: rng.randint(1, 2)]},
    ]
    return Attack(name="hostile tools", sent=(request(_json(body)),))


def _hostile_folders(rng: Rng) -> Attack:
    folder = rng.choice(["/", "..", "../..", "a\x00b", "", "x" * 5000, "~", "/proc/self", ".", "missing", 5, None])
    if rng.random() < 0.5:
        body, path = {"drafter": rng.choice(["medusa", "none", "", "../x", 5]), "path": folder}, "/v1/speculator"
    else:
        body, path = (
            {"lora_name": rng.choice(["a", "tiny", "", "x" * 500]), "lora_path": folder},
            "/v1/load_lora_adapter",
        )
    return Attack(name="hostile folders", sent=(request(_json(body), path=path),))


def _canary(rng: Rng) -> Attack:
    body = good_chat(rng) | {"stream": rng.random() < 0.5}
    return Attack(name="canary", sent=(request(_json(body)),), canary=True)


_KINDS: tuple[Callable[[Rng], Attack], ...] = (  # repeated kinds are chosen more often
    *(_wrong_types,) * 4,
    *(_hang_up, _half_sent, _broken_json, _canary) * 2,
    *(_huge_numbers, _endless_stops, _deep_nesting, _giant_bodies, _bad_unicode, _wrong_headers, _slow, _garbage),
    *(_wrong_routes, _hostile_grammars, _hostile_tools, _hostile_folders),
)
