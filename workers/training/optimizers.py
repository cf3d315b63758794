"""Makes the optimizers, and converts their state to and from the named tensors of a checkpoint."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from workers.hyperparameters.loop import LoopParameters

_BETAS = (0.9, 0.95)
_PREFIX = "optimizer."
# Each row of these matrices belongs to a token. Muon would also update the rows of tokens that have no gradient.
_NOT_FOR_MUON = ("lm_head.weight", "markov_w1.weight")


def make_optimizers(parameters: Mapping[str, nn.Parameter], loop: LoopParameters) -> list[Optimizer]:
    """Returns AdamW for all parameters, or Muon for the matrices of hidden layers and AdamW for the others.

    Muon's updates are scaled so that Muon and AdamW use the same learning rate (arXiv:2502.16982).
    """
    for_muon: list[nn.Parameter] = []
    if loop.optimizer == "muon":
        for_muon = [p for name, p in parameters.items() if p.dim() == 2 and not name.endswith(_NOT_FOR_MUON)]
    muon_ids = set(map(id, for_muon))
    for_adamw = [p for p in parameters.values() if id(p) not in muon_ids]
    lr, weight_decay = loop.learning_rate, loop.weight_decay
    optimizers: list[Optimizer] = []
    if for_muon:
        optimizers.append(Muon(for_muon, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
    if for_adamw:
        optimizers.append(AdamW(for_adamw, lr=lr, betas=_BETAS, weight_decay=weight_decay))
    return optimizers


def optimizer_tensors(parameters: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer]) -> dict[str, Tensor]:
    return {
        f"{_PREFIX}{key}.{name}": value
        for name, parameter in parameters.items()
        for optimizer in optimizers
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizers(
    parameters: Mapping[str, nn.Parameter], optimizers: Sequence[Optimizer], tensors: Mapping[str, Tensor]
) -> None:
    """Restores the state from the result of `optimizer_tensors`, with keys such as optimizer.exp_avg.fc.weight."""
    for optimizer in optimizers:
        optimized_ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for name, parameter in parameters.items():
            if id(parameter) in optimized_ids:
                optimizer.state[parameter] = {
                    key.split(".", 2)[1]: value.clone() if value.dim() == 0 else value.to(parameter.device, copy=True)
                    for key, value in tensors.items()
                    if key.startswith(_PREFIX) and key.split(".", 2)[2] == name
                }


def set_learning_rate(optimizers: Sequence[Optimizer], learning_rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
