"""Promise S6 of docs/reliability.md: a hostile model folder is refused, and its chat template cannot do any harm.

If code in the folder ran, it would create a file named `canary` in the working directory.
"""

import json
from pathlib import Path

import pytest

from control.models.catalog.folder import UnusableModel, inspect_folder
from control.workflows.datasets.formats import Example
from control.workflows.datasets.rendering import Renderer
from tests.control.models.catalog.test_folder import make_folder, safetensors
from tests.control.workflows.datasets.tokenizer import write_tokenizer

CANARY = "canary"
PICKLE = b"cposix\nsystem\n(S'touch canary'\ntR."
CODE = b"open('canary', 'w')\n"

CODE_FILES = (
    *("setup.py", "__init__.py", "tokenizer.py", "configuration_llama.py", "sitecustomize.py", "config.json.py"),
    *("model.safetensors.index.json.py", "a.pyc", "a.pyd", "a.so", "run.sh", "Makefile", ".env", "requirements.txt"),
)
PICKLE_FILES = (
    *("pytorch_model.bin", "model.pt", "model.pth", "model.pkl", "model.ckpt", "model.h5", "model.gguf", "model.onnx"),
    *("flax_model.msgpack", "rust_model.ot", "weights.npz", "training_args.bin", "optimizer.pt", "model.SAFETENSORS"),
    *("model.safetensors.pkl", "processor_config.json", "conf\nig.json"),
)
FILES = {**dict.fromkeys(CODE_FILES, CODE), **dict.fromkeys(PICKLE_FILES, PICKLE)}
CODE_IN_CONFIGS = [
    ("config.json", {"auto_map": {"AutoModelForCausalLM": "evil.Model"}}),
    ("config.json", {"text_config": {"auto_map": {"AutoConfig": "evil--repo.Config"}}}),
    ("config.json", {"parts": [{"deeper": [{"auto_map": {}}]}]}),
    ("config.json", {"custom_pipelines": {"text-generation": {"impl": "evil.Pipeline"}}}),
    ("config.json", {"trust_remote_code": True}),
    ("generation_config.json", {"custom_generate": "evil/repo"}),
    ("generation_config.json", {"auto_map": {"GenerationConfig": "evil.G"}}),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.T", None]}}),
    ("tokenizer_config.json", {"extra": {"trust_remote_code": True}}),
]
WEIGHTS = {
    "a pickle": PICKLE,
    "a pickle under a header's length": len(PICKLE).to_bytes(8, "little") + PICKLE,
    "a header of half an exabyte": (1 << 59).to_bytes(8, "little") + b"{}",
    "tensors that overlap": safetensors(
        {n: {"dtype": "F32", "shape": [2], "data_offsets": [4 * i, 4 * i + 8]} for i, n in enumerate("ab")}, 12
    ),
    "a shape of NaN": safetensors(b'{"w": {"dtype": "F32", "shape": [NaN], "data_offsets": [0, 4]}}', 4),
    "a shape that overflows": safetensors({"w": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 0]}}, 0),
    "a shape of true": safetensors({"w": {"dtype": "I8", "shape": [True, "1"], "data_offsets": [0, 1]}}, 1),
    "a hundred thousand tensors": safetensors(
        {str(i): {"dtype": "I8", "shape": [1], "data_offsets": [i, i + 1]} for i in range(100_000)}, 100_000
    ),
    "offsets before the first byte": safetensors({"w": {"dtype": "I8", "shape": [2], "data_offsets": [-1, 1]}}, 1),
    "bytes that no tensor has": safetensors({"w": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}, 64),
    "a name twice": safetensors(b'{"w": 1, "w": {"dtype": "I8", "shape": [9], "data_offsets": [0, 1]}}', 1),
    "a file of zeros": bytes(64),
}
TEMPLATES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('touch canary') }}",
    "{{ lipsum.__globals__['os'].popen('touch canary').read() }}",
    "{{ self._TemplateReference__context.eval_ctx.environment.globals }}",
    "{{ messages.__class__.__base__.__subclasses__()[0].__init__.__globals__ }}",
    "{% for a in range(1000000000) %}{% endfor %}",
    "{{ messages.append(1) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{{ ''|attr('__class__') }}{{ request.environ }}",
    "{{ 'x'.format.__self__.__class__ }}{{ '{0.__class__.__init__.__globals__}'.format(raise_exception) }}",
    "{{ raise_exception.__globals__ }}",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_folder(tmp_path / "model")


def check_refused(folder: Path, code: str) -> None:
    with pytest.raises(UnusableModel) as refused:
        inspect_folder(folder)
    assert refused.value.code == code
    assert not list(folder.parent.rglob(CANARY))


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_part_of_a_model_are_refused(folder: Path, name: str) -> None:
    (folder / name).write_bytes(FILES[name])
    check_refused(folder, "model_file_forbidden")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "config.json", "/dev/zero", "nowhere"])
def test_links_are_refused_whatever_their_target(folder: Path, target: str) -> None:
    (folder / "tokenizer_config.json").symlink_to(target)
    check_refused(folder, "model_file_forbidden")


@pytest.mark.parametrize(("name", "values"), CODE_IN_CONFIGS)
def test_configurations_that_refer_to_code_are_refused(folder: Path, name: str, values: dict[str, object]) -> None:
    (folder / name).write_text(json.dumps({"model_type": "llama", **values}))
    check_refused(folder, "model_code_forbidden")


@pytest.mark.parametrize("description", WEIGHTS)
def test_invalid_weights_are_refused(folder: Path, description: str) -> None:
    (folder / "model.safetensors").write_bytes(WEIGHTS[description])
    check_refused(folder, "model_weights_invalid")


@pytest.mark.parametrize("template", TEMPLATES)
def test_templates_cannot_leave_their_sandbox(folder: Path, template: str) -> None:
    write_tokenizer(folder)
    (folder / "chat_template.jinja").write_text(template)
    body = {"messages": [{"role": "user", "content": "2+2?"}]}
    example = Example(custom_id=None, endpoint="/v1/chat/completions", body=body, answer=None)

    try:
        prompt = Renderer(folder).render(example).prompt
    except ValueError:
        prompt = ""

    assert "root:" not in prompt
    assert "globals" not in prompt
    assert "<class" not in prompt
    assert not list(folder.parent.rglob(CANARY))
