"""Multi-token-prediction modules in the layout of the package `speculators`."""

from collections.abc import Mapping
from typing import Any

from workers.exports.artifact import Artifact, ArtifactKind
from workers.exports.checks import check_sizes
from workers.exports.errors import invalid
from workers.exports.folder import integer, section
from workers.exports.shapes import MAX_COUNT, Layer, TensorShapes, check_tensors
from workers.exports.target import Target


def tensor_shapes(config: Mapping[str, Any]) -> TensorShapes:
    """Returns the shapes of the module's tensors. config: the contents of config.json."""
    values = config["transformer_layer_config"]
    layer, prefix = Layer.read(values), "mtp_layers.0."
    H, inner = layer.hidden, layer.inner
    required = layer.shapes(prefix, read_width=H) | {f"{prefix}input_proj.weight": (H, 2 * H)}
    required |= {f"{prefix}{name}_layernorm.weight": (H,) for name in ("token", "hidden", "final")}
    if values.get("mlp_bias"):
        sizes = {"gate": inner, "up": inner, "down": H}
        required |= {f"{prefix}mlp.{name}_proj.bias": (size,) for name, size in sizes.items()}
    return TensorShapes(required)


def _check_mtp(artifact: Artifact, target: Target) -> None:
    layer = section(artifact.config, "transformer_layer_config")
    methods = section(artifact.config, "speculators_config").get("proposal_methods")
    if not isinstance(methods, list) or not methods or not isinstance(methods[0], dict):
        raise invalid("speculators_config.proposal_methods must be a list whose first object has speculative_tokens")
    integer(methods[0], "speculative_tokens", most=MAX_COUNT)
    check_tensors(artifact.tensors, tensor_shapes(artifact.config))
    check_sizes(target, hidden=integer(layer, "hidden_size"), vocab=integer(layer, "vocab_size"))


KIND = ArtifactKind(check=_check_mtp, speculators_types=("mtp",))
