"""Compiles the source of a grammar with xgrammar, which may run for hours or crash; see engine/grammars/trial.py."""

import json
import re
from typing import Any

import xgrammar

from engine.grammars.grammar import GrammarKind
from engine.grammars.json_schema import MAX_DEPTH, enforceable, load_json

# Between two JSON tokens, an answer may have one space, or one or two line breaks and an indentation. Without a limit
# on whitespace, a sampled answer of a weak model may consist of line breaks. Source: llama.cpp, which allows at most
# 20 blanks.
_WHITESPACE = r'("" | " " | "\r"? "\n" ("\r"? "\n")? [ \t]{0,40})'
_MAX_COUNT = 64  # xgrammar writes whitespace{0, 64}, from which `_ebnf_of_schema` removes the repetition
_WHITESPACE_RULE = re.compile(r"^(whitespace(?:_\d+)?) ::= \(\(\[ \\n\\r\\t\]\)\)$", re.MULTILINE)
_WHITESPACE_USE = re.compile(r'("(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\])|\b(whitespace(?:_\d+)?)\{0, 64\}')
_MESSAGE_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: (Check failed: .*? is false: )?")


def new_compiler(vocabulary: list[bytes], stop_token_ids: list[int]) -> xgrammar.GrammarCompiler:
    """`vocabulary`: bytes of each token; b"" for tokens that grammars must not use."""
    info = xgrammar.TokenizerInfo(
        vocabulary, xgrammar.VocabType.RAW, vocab_size=len(vocabulary), stop_token_ids=stop_token_ids
    )
    return xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)


def compile_source(compiler: xgrammar.GrammarCompiler, kind: str, source: str) -> xgrammar.CompiledGrammar:
    """Compiles the source of a grammar.

    Raises: ValueError: the source is invalid; the message is a predicate, to which the caller adds the subject.
    """
    try:
        match GrammarKind(kind):
            case GrammarKind.JSON_SCHEMA:
                return compiler.compile_grammar(_ebnf_of_schema(enforceable(load_json(source))))
            case GrammarKind.JSON_OBJECT:
                return compiler.compile_grammar(_ebnf_of_schema({"type": "object"}))
            case GrammarKind.REGEX:
                return compiler.compile_regex(source)
            case GrammarKind.EBNF:
                return compiler.compile_grammar(source)
            case GrammarKind.CHOICE:
                return compiler.compile_grammar(_ebnf_of_choice(source))
            case GrammarKind.STRUCTURAL_TAG:
                return compiler.compile_structural_tag(json.dumps(_tagged(load_json(source))))
    except RuntimeError as error:
        reason = _MESSAGE_PREFIX.sub("", str(error)).strip()[:300] or "it is not well formed"
        raise ValueError(f"is refused: {reason}") from error


def _ebnf_of_schema(schema: Any) -> str:
    """Returns xgrammar's grammar of a schema, with whitespace limited to `_WHITESPACE`."""
    text = str(xgrammar.Grammar.from_json_schema(json.dumps(schema), max_whitespace_cnt=_MAX_COUNT))
    text = _WHITESPACE_RULE.sub(lambda rule: f"{rule[1]} ::= {_WHITESPACE}", text)
    return _WHITESPACE_USE.sub(lambda part: part[1] or part[2], text)  # part 1: a string or a character class


def _ebnf_of_choice(source: str) -> str:
    choices = load_json(source)
    if not isinstance(choices, list) or not choices or not all(isinstance(c, str) and c for c in choices):
        raise ValueError(f"must be a list of at least one string, none of them empty, got {source:.80}")
    quoted = ('"' + "".join(f"\\U{ord(c):08x}" for c in choice) + '"' for choice in choices)
    return "root ::= " + " | ".join(quoted)


def _tagged(value: Any, depth: int = 0) -> Any:
    """Makes the schemas in a structural tag enforceable, and limits their whitespace."""
    if depth > MAX_DEPTH:
        raise ValueError(f"is nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, list):
        return [_tagged(child, depth + 1) for child in value]
    if not isinstance(value, dict):
        return value
    tagged = {k: enforceable(v) if k == "json_schema" else _tagged(v, depth + 1) for k, v in value.items()}
    if tagged.keys() == {"type", "json_schema"} and tagged["type"] == "json_schema":
        return {"type": "grammar", "grammar": _ebnf_of_schema(tagged["json_schema"])}
    return tagged
