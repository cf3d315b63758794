"""Errors of the engine.

EngineError
├── ModelNotLoadable      the folder holds no model this engine serves
├── SpeculatorNotLoadable the folder holds no speculator for this model
├── AdapterNotLoadable    the folder holds no LoRA adapter for this model
├── RequestTooLong        the request can never fit
├── GrammarTooSlow        holding an answer to its grammar takes too long
└── DrafterError          the drafter can't serve this batch; the engine then decodes plainly
"""


class EngineError(Exception):
    pass


class ModelNotLoadable(EngineError, ValueError):
    pass


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
