"""Errors of the engine.

EngineError
├── ModelNotLoadable      the folder holds no model that this engine supports
│   ├── QuantizedCheckpoint      the weights are quantized with a method that this engine does not read
│   ├── ScalesMissing            scales or zero points of a quantized weight are missing
│   ├── QuantizedWeightsInvalid  quantized weights contradict config.json or each other
│   ├── ModelTooLarge            the device has too little memory for the model and one sequence
│   ├── TensorParallelUnsupported  the model cannot be cut into this number of parts
│   ├── TensorParallelOnCuda     tensor parallelism has not been run on GPUs
│   ├── WeightsNotSupported      this device or model has no kernels for the wanted format of the weights
│   └── KvDtypeNotSupported      the attention kernels read no cache of the wanted dtype for this model
├── SpeculatorNotLoadable the folder holds no speculator for this model
├── AdapterNotLoadable    the folder holds no LoRA adapter for this model
├── RequestTooLong        prompt and answer exceed the context or the cache
├── NonFiniteLogits       the model computes no usable logits for one request; only this request fails
├── GrammarTooSlow        matching the grammar takes too long
├── SleepNotSupported     the memory of this engine cannot be given back
└── DrafterError          the drafter can't serve this batch; the engine then decodes without a draft
"""

from workers.model_folders import QUANTIZED_CHECKPOINT


class EngineError(Exception):
    pass


class SleepNotSupported(EngineError):
    pass


class ModelNotLoadable(EngineError, ValueError):
    code = "model_not_loadable"  # shown to customers; never changes


class QuantizedCheckpoint(ModelNotLoadable):
    code = QUANTIZED_CHECKPOINT


class ScalesMissing(ModelNotLoadable):
    code = "quantization_scales_missing"


class QuantizedWeightsInvalid(ModelNotLoadable):
    code = "quantized_weights_invalid"


class ModelTooLarge(ModelNotLoadable):
    code = "does_not_fit"


class TensorParallelUnsupported(ModelNotLoadable):
    code = "tensor_parallel_unsupported"


class TensorParallelOnCuda(ModelNotLoadable):
    code = "tensor_parallel_not_run_on_cuda"


class WeightsNotSupported(ModelNotLoadable):
    code = "weights_not_supported"


class KvDtypeNotSupported(ModelNotLoadable):
    code = "kv_dtype_not_supported"


class SpeculatorNotLoadable(EngineError, ValueError):
    pass


class AdapterNotLoadable(EngineError, ValueError):
    pass


class RequestTooLong(EngineError, ValueError):
    pass


class NonFiniteLogits(EngineError):
    code = "non_finite_logits"

    def __init__(self) -> None:
        super().__init__(
            "the model's logits for the next token are not finite numbers (NaN or infinity), so this request cannot be "
            "answered; other requests are not affected. The usual causes are damaged weights and numbers that exceed "
            "the number format: check the model's files, or serve it with another dtype"
        )


class GrammarTooSlow(EngineError):
    pass


class DrafterError(EngineError):
    pass
