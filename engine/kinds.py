"""The registry of the kinds of drafters: how each kind is loaded, decodes in CUDA graphs, and is trained.

`workers/kinds.py` lists the kinds that can be trained and says where the code of their hyperparameters and exports is.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.drafters.base import Drafter
from engine.drafters.block import BlockDrafter
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.medusa import MedusaDrafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.mtp_layer import DensePrediction
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.errors import SpeculatorNotLoadable
from engine.graph_decoding.batch_slots import BatchSlots
from engine.graph_decoding.device import Device
from engine.graph_decoding.drafters.base import GraphDrafter
from engine.graph_decoding.drafters.block import BlockGraphDrafter
from engine.graph_decoding.drafters.growing import GrowingTreeGraphDrafter
from engine.graph_decoding.drafters.levels import Eagle3Levels, MtpLevels
from engine.graph_decoding.drafters.medusa import MedusaGraphDrafter
from engine.models.base import Model
from engine.models.dense import Decoder


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSource:
    """The kind, target and folders from which a drafter is loaded.

    speculator_dir: None if no speculator folder was given.
    target_dir: the target's own folder, if it is known.
    """

    kind: str
    target: Model
    speculator_dir: Path | None
    target_dir: Path | None

    @property
    def folder(self) -> Path:
        """Raises: SpeculatorNotLoadable: no speculator folder was given."""
        if self.speculator_dir is None:
            raise SpeculatorNotLoadable(f"drafter {self.kind} needs a speculator folder")
        return self.speculator_dir


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How drafters of one kind are loaded, run in CUDA graphs, and trained.

    load: raises SpeculatorNotLoadable.
    graph_decoding: builds the object that drafts on the device for a prepared drafter. If the function is missing or
        returns None, the drafter runs on the host.
    trainer: "module:class" in the workers, which the engine must not import. The class method `prepare` of this class
        makes a SpeculatorMethod (workers/training/methods.py). None: drafters of this kind have nothing to train.
    """

    load: Callable[[DrafterSource], Drafter]
    graph_decoding: Callable[[Drafter, Decoder, BatchSlots, Device], GraphDrafter | None] | None
    trainer: str | None


def _load_draft_model(source: DrafterSource) -> Drafter:
    from engine.load import load_draft_model  # imported here because engine.load imports this module

    return load_draft_model(source.folder, source.target, source.target_dir)


def _medusa_graph_drafter(drafter: Drafter, target: Decoder, slots: BatchSlots, device: Device) -> GraphDrafter | None:
    return MedusaGraphDrafter(drafter, slots, device) if isinstance(drafter, MedusaDrafter) else None


def _eagle3_graph_drafter(drafter: Drafter, target: Decoder, slots: BatchSlots, device: Device) -> GraphDrafter | None:
    if not isinstance(drafter, Eagle3Drafter):
        return None
    return GrowingTreeGraphDrafter(Eagle3Levels(drafter), slots, device)


def _mtp_graph_drafter(drafter: Drafter, target: Decoder, slots: BatchSlots, device: Device) -> GraphDrafter | None:
    if not isinstance(drafter, MtpDrafter) or not isinstance(drafter.module, DensePrediction):
        return None
    return GrowingTreeGraphDrafter(MtpLevels(drafter, drafter.module, target), slots, device)


def _block_graph_drafter(drafter: Drafter, target: Decoder, slots: BatchSlots, device: Device) -> GraphDrafter | None:
    return BlockGraphDrafter(drafter, target, slots) if isinstance(drafter, BlockDrafter) else None


# The name of a drafter may also combine several kinds, as in "eagle3+suffix".
KINDS: Mapping[str, Kind] = {
    "none": Kind(load=lambda source: NoDrafter(), graph_decoding=None, trainer=None),
    "ngram": Kind(load=lambda source: NgramDrafter(), graph_decoding=None, trainer=None),
    "suffix": Kind(load=lambda source: SuffixDrafter(), graph_decoding=None, trainer=None),
    "medusa": Kind(
        load=lambda source: MedusaDrafter.load(source.folder, source.target),
        graph_decoding=_medusa_graph_drafter,
        trainer="workers.training.medusa.method:MedusaMethod",
    ),
    "turbo_lora": Kind(  # this loads the Medusa heads; `engine.load.apply_adapter` loads the LoRA adapter
        load=lambda source: MedusaDrafter.load(source.folder, source.target),
        graph_decoding=_medusa_graph_drafter,
        trainer="workers.training.turbo_lora.method:TurboLoraMethod",
    ),
    "eagle3": Kind(
        load=lambda source: Eagle3Drafter.load(source.folder, source.target),
        graph_decoding=_eagle3_graph_drafter,
        trainer="workers.training.eagle3.method:Eagle3Method",
    ),
    "mtp": Kind(  # without a speculator folder, the module in DeepSeek-V3's own folder is used
        load=lambda source: MtpDrafter.load(source.speculator_dir, source.target),
        graph_decoding=_mtp_graph_drafter,
        trainer="workers.training.mtp.method:MtpMethod",
    ),
    "native_mtp": Kind(  # DeepSeek-V3 is never decoded in graphs
        load=lambda source: MtpDrafter.load(None, source.target), graph_decoding=None, trainer=None
    ),
    "block": Kind(
        load=lambda source: BlockDrafter.load(source.folder, source.target),
        graph_decoding=_block_graph_drafter,
        trainer="workers.training.block.method:BlockMethod",
    ),
    "draft_model": Kind(
        load=_load_draft_model,
        graph_decoding=None,
        trainer="workers.training.draft_model.method:DraftModelMethod",
    ),
}
