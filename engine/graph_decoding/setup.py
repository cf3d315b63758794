"""Decides whether an engine uses graph decoding, and builds its batch slots and runners."""

from engine.cache.kv_cache import KVCache
from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.graph_decoding.batch_slots import BatchSlots
from engine.graph_decoding.device import Device, device_of
from engine.graph_decoding.drafters.base import GraphDrafter
from engine.graph_decoding.runner import Runner
from engine.kinds import KINDS
from engine.lora.stacks import LoraStacks
from engine.models.base import Model
from engine.models.dense import Decoder


def uses_graph_decoding(model: Model, config: EngineConfig) -> bool:
    """Returns whether the config asks for graph decoding and the model is a dense decoder.

    Other models can't be captured in graphs, because routed experts and the models of transformers need the host during
    a forward pass.
    """
    is_enabled = config.graph_decoding == "on" or (config.graph_decoding == "auto" and model.device.type == "cuda")
    return is_enabled and isinstance(model, Decoder)


class GraphDecodingSetup:
    """Holds the batch slots and the device of an engine, and builds a runner for each drafter."""

    def __init__(self, model: Model, cache: KVCache, stacks: LoraStacks | None) -> None:
        assert isinstance(model, Decoder)  # `uses_graph_decoding` has checked this
        self.device: Device = device_of(model.device)
        self.batch_slots = BatchSlots(cache, self.device)
        self._model = model
        self._cache = cache
        self._stacks = stacks

    def runner(self, drafter: Drafter) -> tuple[Runner, GraphDrafter | None]:
        """Returns a runner, and the implementation of the drafter on the device (None if it drafts on the host)."""
        on_device = graph_drafter(drafter, self._model, self.batch_slots, self.device)
        runner = Runner(
            self._model,
            self._cache,
            self.batch_slots,
            self.device,
            on_device,
            taps=drafter.tap_layers,
            keeps_hidden=on_device is None and drafter.max_depth > 0,
            stacks=self._stacks,
        )
        return runner, on_device


def graph_drafter(drafter: Drafter, model: Decoder, batch_slots: BatchSlots, device: Device) -> GraphDrafter | None:
    """Returns the implementation of a prepared drafter on the device; None if it drafts on the host."""
    kind = KINDS.get(drafter.name)  # a combined drafter has no kind
    if kind is None or kind.graph_decoding is None:
        return None
    return kind.graph_decoding(drafter, model, batch_slots, device)
