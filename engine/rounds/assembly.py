"""Puts together what decoding in rounds needs, for a model and a drafter."""

from engine.config import EngineConfig
from engine.draft import MAX_DEPTH
from engine.drafters.base import Drafter
from engine.kinds import KINDS
from engine.kv_cache import KVCache
from engine.lora_stacks import LoraStacks
from engine.model import Decoder
from engine.models.base import Model
from engine.rounds.device import Device, device_of
from engine.rounds.drafters.base import RoundDrafter
from engine.rounds.lanes import Lanes
from engine.rounds.runner import Runner

SPARE_POSITIONS = MAX_DEPTH  # of a slot table: what a finished answer's surplus may write


def serves_rounds(model: Model, config: EngineConfig) -> bool:
    """Only decoders of our own run without asking the host: elsewhere experts are chosen, or a library has its say."""
    wanted = config.rounds == "on" or (config.rounds == "auto" and model.device.type == "cuda")
    return wanted and isinstance(model, Decoder)


class RoundParts:
    """Lanes and device of an engine, and a runner for each drafter it ever has."""

    def __init__(self, model: Model, cache: KVCache, stacks: LoraStacks | None) -> None:
        assert isinstance(model, Decoder)  # serves_rounds
        self.device: Device = device_of(model.device)
        self.lanes = Lanes(cache, self.device)
        self._model = model
        self._cache = cache
        self._stacks = stacks

    def runner(self, drafter: Drafter) -> tuple[Runner, RoundDrafter | None]:
        """And the drafter as it drafts on the device, if it can."""
        own = round_drafter(drafter, self._model, self.lanes, self.device)
        runner = Runner(
            self._model,
            self._cache,
            self.lanes,
            self.device,
            own,
            taps=drafter.tap_layers,
            keeps_hidden=own is None and drafter.max_depth > 0,
            stacks=self._stacks,
        )
        return runner, own


def round_drafter(drafter: Drafter, model: Decoder, lanes: Lanes, device: Device) -> RoundDrafter | None:
    """Returns the part of a prepared drafter that drafts on the device, or None if it drafts on the host."""
    kind = KINDS.get(drafter.name)  # a combined drafter has no kind
    if kind is None or kind.graph_decoding is None:
        return None
    return kind.graph_decoding(drafter, model, lanes, device)
