"""Adapts the modules of EAGLE-3 and multi-token prediction to the interface `Levels` of growing.py."""

import torch
from torch import Tensor

from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.graph_decoding.drafters.candidate_head import CandidateHead
from engine.models.base import Hidden
from engine.models.dense import Decoder
from engine.sequence import Sequence
from kernels.decoder import DecoderRows


class Eagle3Levels:
    """EAGLE-3's layer.

    At kept positions, the layer's input is computed from the target's taps. At draft nodes, it is the layer's own
    output.
    """

    def __init__(self, drafter: Eagle3Drafter) -> None:
        self._drafter = drafter
        self._layer = drafter.layer
        self.max_depth = drafter.max_depth
        self.hidden_size = drafter.layer.config.hidden_size
        self.dtypes = (drafter.layer.dtype, torch.float32)
        self.last_position = drafter.max_position
        self.scratch = drafter.scratch
        self.head = CandidateHead(drafter.layer.lm_head, drafter.vocab)

    def inputs(self, hidden: Hidden, rows: Tensor) -> Tensor:
        assert hidden.taps is not None  # the drafter has tap_layers
        return self._layer.fuse(hidden.taps[rows])

    def run(self, inputs: Tensor, tokens: Tensor, rows: DecoderRows) -> tuple[Tensor, Tensor]:
        keys_values = self._drafter.keys_values
        assert keys_values is not None  # set by `prepare`
        features = self._layer.run(inputs, tokens, rows.positions, rows.slots, rows.attention, keys_values)
        return features.read, features.fed_back

    def host_state(self, sequence: Sequence) -> tuple[Tensor, Tensor] | None:
        anchor = self._drafter.anchor(sequence)
        return None if anchor is None else (anchor.read, anchor.fed_back)


class MtpLevels:
    """A prediction module.

    At kept positions, the module's input is the target's hidden state. At draft nodes, it is the module's own output.
    """

    def __init__(self, drafter: MtpDrafter, module: DensePrediction, target: Decoder) -> None:
        self._drafter = drafter
        self._module = module
        self.max_depth = drafter.max_depth
        self.hidden_size = module.hidden_size
        self.dtypes = (module.dtype, module.dtype)
        self.last_position = drafter.last_position
        self.scratch = drafter.scratch
        self.head = CandidateHead(module.own_head or target.weights.lm_head_packed, module.vocab)

    def inputs(self, hidden: Hidden, rows: Tensor) -> Tensor:
        return hidden.final[rows]

    def run(self, inputs: Tensor, tokens: Tensor, rows: DecoderRows) -> tuple[Tensor, Tensor]:
        output = self._module.forward(inputs, tokens, rows, self._drafter.keys)
        return output, output

    def host_state(self, sequence: Sequence) -> tuple[Tensor, Tensor] | None:
        anchor = self._drafter.anchor(sequence)
        return None if anchor is None else (anchor.output, anchor.output)
