"""Errors of the engine.

EngineError
├── ModelNotLoadable      the folder holds no model that this engine supports
│   └── QuantizedCheckpoint   the weights are quantized, and their scales would be ignored
├── SpeculatorNotLoadable the folder holds no speculator for this model
├── AdapterNotLoadable    the folder holds no LoRA adapter for this model
├── RequestTooLong        prompt and answer exceed the context or the cache
├── GrammarTooSlow        matching the grammar takes too long
└── DrafterError          the drafter can't serve this batch; the engine then decodes without a draft
"""

from workers.model_folders import QUANTIZED_CHECKPOINT


class EngineError(Exception):
    pass


class ModelNotLoadable(EngineError, ValueError):
    code = "model_not_loadable"  # shown to customers; never changes


class QuantizedCheckpoint(ModelNotLoadable):
    code = QUANTIZED_CHECKPOINT


class SpeculatorNotLoadable(EngineError, ValueError):
    pass


class AdapterNotLoadable(EngineError, ValueError):
    pass


class RequestTooLong(EngineError, ValueError):
    pass


class GrammarTooSlow(EngineError):
    pass


class DrafterError(EngineError):
    pass
