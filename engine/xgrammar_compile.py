"""From a grammar's source to xgrammar's compiled form. May run for hours or crash; see engine/grammar_trial.py."""

import json
import re
from typing import Any

import xgrammar

from engine.grammar import GrammarKind
from engine.json_schema import MAX_DEPTH, enforceable, load_json

_MAX_WHITESPACE = 64  # between two tokens of JSON; without a bound a weak model may never stop
_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")


def new_compiler(vocabulary: list[bytes], stop_token_ids: list[int]) -> xgrammar.GrammarCompiler:
    """vocabulary: by token id; b"" for tokens that no grammar may use."""
    info = xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=stop_token_ids
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_source(compiler: xgrammar.GrammarCompiler, kind: str, source: str) -> xgrammar.CompiledGrammar:
    """Raises: ValueError: what is wrong with the source, as the end of a sentence that begins with its name."""
    try:
        match GrammarKind(kind):
            case GrammarKind.JSON_SCHEMA:
                schema = json.dumps(enforceable(load_json(source)))
                return compiler.compile_json_schema(schema, max_whitespace_cnt=_MAX_WHITESPACE)
            case GrammarKind.JSON_OBJECT:
                return compiler.compile_json_schema('{"type": "object"}', max_whitespace_cnt=_MAX_WHITESPACE)
            case GrammarKind.REGEX:
                return compiler.compile_regex(source)
            case GrammarKind.EBNF:
                return compiler.compile_grammar(source)
            case GrammarKind.CHOICE:
                return compiler.compile_grammar(_ebnf_of_choice(source))
            case GrammarKind.STRUCTURAL_TAG:
                return compiler.compile_structural_tag(json.dumps(_tagged(load_json(source))))
    except RuntimeError as error:
        reason = _WHERE.sub("", str(error)).strip()[:300] or "it is not well formed"
        raise ValueError(f"is refused: {reason}") from error


def _ebnf_of_choice(source: str) -> str:
    choices = load_json(source)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise ValueError(f"must be a list of at least one string, none of them empty, got {source:.80}")
    quoted = ('"' + "".join(f"\\U{ord(c):08x}" for c in choice) + '"' for choice in choices)
    return "root ::= " + " | ".join(quoted)


def _tagged(value: Any, depth: int = 0) -> Any:
    """A structural tag with the schemas in it made enforceable."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [_tagged(child, depth + 1) for child in value]
    if not isinstance(value, dict):
        return value
    return {k: enforceable(v) if k == "json_schema" else _tagged(v, depth + 1) for k, v in value.items()}
