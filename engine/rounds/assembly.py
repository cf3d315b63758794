"""Puts together what decoding in rounds needs, for a model and a drafter."""

from engine.config import EngineConfig
from engine.draft import MAX_DEPTH
from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.kv_cache import KVCache
from engine.lora_stacks import LoraStacks
from engine.model import Decoder
from engine.models.base import Model
from engine.rounds.device import Device, device_of
from engine.rounds.drafters.base import RoundDrafter
from engine.rounds.drafters.block import BlockInRounds
from engine.rounds.drafters.growing import GrowingInRounds
from engine.rounds.drafters.levels import Eagle3Levels, MtpLevels
from engine.rounds.drafters.medusa import MedusaInRounds
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
    """Prepared drafters as they draft on the device; None: those that do on the host."""
    if isinstance(drafter, MedusaDrafter):
        return MedusaInRounds(drafter, lanes, device)
    if isinstance(drafter, Eagle3Drafter):
        return GrowingInRounds(Eagle3Levels(drafter), lanes, device)
    if isinstance(drafter, MtpDrafter) and isinstance(drafter.module, DensePrediction):
        return GrowingInRounds(MtpLevels(drafter, drafter.module, model), lanes, device)
    if isinstance(drafter, BlockDrafter):
        return BlockInRounds(drafter, model, lanes)
    return None
