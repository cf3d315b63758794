"""House rules that a program can check. A file or function over the length limit gives a reason: `# long: ...`."""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.source_tree import SourceFile, source_files

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
REASON = re.compile(r"#\s*long:\s*\S+")

BROAD = ("Exception", "BaseException")

FILES = [file for file in source_files() if not file.is_migration]
CODE = [file for file in FILES if not file.is_test]

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(file: SourceFile) -> Iterator[Function]:
    return (node for node in ast.walk(file.tree) if isinstance(node, Function))


def calls(file: SourceFile) -> Iterator[ast.Call]:
    return (node for node in ast.walk(file.tree) if isinstance(node, ast.Call))


def called_name(call: ast.Call) -> str:
    return ast.unparse(call.func)


def num_code_lines(function: Function) -> int:
    """Returns the number of lines of the body, without the docstring."""
    body = function.body
    if ast.get_docstring(function, clean=False) is not None:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_files_are_short_or_give_a_reason() -> None:
    long = [
        f"{file.path}: {len(file.text.splitlines())} lines"
        for file in FILES
        if len(file.text.splitlines()) > MAX_FILE_LINES and not REASON.search("\n".join(file.text.splitlines()[:30]))
    ]
    assert long == [], f"split by concept, or write `# long: reason` at the top (at most {MAX_FILE_LINES} lines)"


def test_functions_are_short_or_give_a_reason() -> None:
    long = []
    for file in FILES:
        lines = file.text.splitlines()
        for function in functions(file):
            head = "\n".join(lines[max(0, function.lineno - 2) : function.body[0].lineno])
            if num_code_lines(function) > MAX_FUNCTION_LINES and not REASON.search(head):
                long.append(f"{file.path}:{function.lineno} {function.name}: {num_code_lines(function)} lines")
    assert long == [], f"at most {MAX_FUNCTION_LINES} lines, or `# long: reason` beside the def"


def test_every_public_module_has_a_docstring() -> None:
    undocumented = [
        str(file.path)
        for file in CODE
        if not any(part.startswith("_") and part != "__main__" for part in file.module.split("."))
        and file.path.name not in ("apps.py", "urls.py", "__init__.py")  # the file name says what the module is
        and not ast.get_docstring(file.tree)
    ]
    assert undocumented == []


def test_no_file_contains_a_path_of_one_machine() -> None:
    """A path in a user's home or a build folder works only on one machine."""
    machine_path = re.compile(r"""["'`( ](/home/|/Users/|/root/|/work/|/mnt/|[A-Z]:\\\\)""")
    violations = [
        f"{file.path}:{number}"
        for file in FILES
        if file.module != __name__
        for number, line in enumerate(file.text.splitlines(), start=1)
        if machine_path.search(line)
    ]
    assert violations == []


def test_received_data_is_never_executed() -> None:
    """Pickle, eval, shells, unsafe YAML and unchecked certificates are forbidden."""
    banned_calls = {"eval", "exec", "yaml.load", "os.system", "os.popen"}
    banned_modules = {"pickle", "dill", "shelve", "marshal"}
    banned_arguments = {("shell", True), ("verify", False), ("trust_remote_code", True), ("weights_only", False)}
    violations = []
    for file in FILES:
        for call in calls(file):
            arguments = {(k.arg, k.value.value) for k in call.keywords if isinstance(k.value, ast.Constant)}
            if called_name(call) in banned_calls or arguments & banned_arguments:
                violations.append(f"{file.path}:{call.lineno} {called_name(call)}")
        for node in ast.walk(file.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
                violations += [f"{file.path}:{node.lineno} import {name}" for name in names if name in banned_modules]
    assert violations == []


def test_only_commands_print() -> None:
    violations = []
    for file in CODE:
        is_command = (
            "__main__" in file.text or file.path.parts[0] in ("examples", "benchmarks") or "commands" in file.path.parts
        )
        if not is_command and file.module != "workers.emitter":  # a worker's child process prints its events
            violations += [f"{file.path}:{call.lineno}" for call in calls(file) if called_name(call) == "print"]
    assert violations == [], "a library logs or returns"


def test_a_broad_except_logs_raises_or_gives_a_reason() -> None:
    violations = []
    for file in CODE:
        lines = file.text.splitlines()
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) in BROAD):
                reason = any("#" in line for line in lines[node.lineno - 1 : node.body[0].lineno])
                body = "\n".join(ast.unparse(statement) for statement in node.body)
                if not reason and not re.search(r"\braise\b|log\w*\.exception\(", body):
                    violations.append(f"{file.path}:{node.lineno}")
    assert violations == []


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "HACK"])
def test_a_todo_names_what_would_trigger_it(word: str) -> None:
    violations = [
        f"{file.path}:{number}"
        for file in FILES
        if file.module != __name__
        for number, line in enumerate(file.text.splitlines(), start=1)
        if re.search(rf"#.*\b{word}\b(?! \(when )", line)
    ]
    assert violations == [], f"write `# {word} (when ...): ...`"


def test_no_code_is_commented_out() -> None:
    """Two adjacent comment lines that parse as statements are code."""
    statement = re.compile(
        r"^\s*#\s*(return\b|import \w|from \w+ import|[\w.]+\(.*\)$|[\w.]+ = .+$|if .+:$|for .+ in .+:$)"
    )
    violations = [
        f"{file.path}:{number}"
        for file in FILES
        for number, (first, second) in enumerate(pairwise(file.text.splitlines()), start=1)
        if statement.match(first) and statement.match(second)
    ]
    assert violations == []
