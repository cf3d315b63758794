"""The heads that training starts from: new heads, or the heads of an earlier speculator."""

from engine.drafters.medusa import MedusaDrafter
from engine.drafters.medusa_heads import MedusaConfig, MedusaHeads
from workers.hyperparameters.medusa import MedusaHyperparameters
from workers.training.preparation import Preparation


def initial_heads(preparation: Preparation, parameters: MedusaHyperparameters) -> MedusaHeads:
    """Loads the heads in `preparation.initial`, or makes new heads if it is None.

    Raises: SpeculatorNotLoadable: the folder has no Medusa heads, or they do not fit the target.
    """
    target = preparation.target
    if preparation.initial is not None:
        heads = MedusaHeads.load(preparation.initial)
        MedusaDrafter(heads, target)  # raises if the heads do not fit the target
        return heads
    vocab = preparation.draft_vocab(parameters.draft_vocab_size, parameters.loop).to(target.device)
    config = MedusaConfig(
        hidden_size=target.config.hidden_size,
        num_heads=parameters.num_heads,
        num_layers=parameters.num_layers,
        draft_vocab_size=vocab.shape[0],
        tied=parameters.tied,
        token_input=parameters.token_input,
        prompt_tokens=parameters.prompt_tokens,
    )
    return MedusaHeads(config, vocab, lm_head=target.lm_head)
