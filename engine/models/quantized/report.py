"""Says how a model's weights are stored and in which format the kernels multiply with them."""

from dataclasses import asdict, dataclass
from pathlib import Path

from engine.models.base import Model
from engine.models.dense import Decoder
from engine.models.quantized.source import format_of
from engine.tensor_parallel.leader import ShardedModel
from kernels.decoder import LayerWeights


@dataclass(frozen=True, slots=True)
class WeightsReport:
    format: str  # format in which the checkpoint stores the weights
    kernel: str  # format of the weights in the matrix products of the layers

    def as_json(self) -> dict[str, str]:
        return asdict(self)


UNKNOWN = WeightsReport("unknown", "unknown")  # for an engine that was not loaded from a folder


def report_weights(model_dir: Path, model: Model) -> WeightsReport:
    published, computed = _short(str(model.config.dtype)), _short(str(model.dtype))
    form = format_of(model_dir)
    names = {computed}
    if isinstance(model, Decoder | ShardedModel):
        layers = [layer for layer in model.weights.layers if isinstance(layer, LayerWeights)]
        products = [weight for layer in layers for name, weight in layer.products.items() if name != "router"]
        names = {weight.format_name for weight in products} or names
    widened = form is not None and computed in names
    shown = [f"{name} (widened)" if widened and name == computed else name for name in sorted(names)]
    return WeightsReport(form.name if form else published, " and ".join(shown))


def _short(dtype: str) -> str:
    return dtype.removeprefix("torch.")
