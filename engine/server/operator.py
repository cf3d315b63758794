"""Handles operator requests, which swap the speculator and load or unload LoRA adapters while the server runs.

Files are read outside of the engine's thread, and the change is made between two steps. Running requests continue;
their tokens do not depend on the drafter. Folders must be below the root folders given when the server was started.
"""

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.drafters.base import Drafter
from engine.errors import EngineError
from engine.fields import Fields, InvalidRequest, reject_unknown
from engine.openai.responses import metrics_block
from engine.request import SpeculationStats
from engine.server.async_engine import AsyncEngine
from engine.server.catalog import Catalog

logger = logging.getLogger(__name__)

PATHS = ("/v1/speculator", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")

LoadDrafter = Callable[[str, Path | None], Drafter]  # raises EngineError, OSError, ValueError

_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}")


@dataclass(frozen=True, slots=True)
class _Baseline:
    """The engine's counters when the current drafter was installed."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_per_position: tuple[int, ...] = ()


class Operator:
    def __init__(
        self,
        async_engine: AsyncEngine,
        catalog: Catalog,
        *,
        load_drafter: LoadDrafter,
        speculator_root: Path | None,
        adapter_root: Path | None,
        speculator_dir: Path | None,
    ) -> None:
        """`speculator_dir`: the folder of the current drafter."""
        self._async_engine = async_engine
        self._catalog = catalog
        self._load_drafter = load_drafter
        self._speculator_root = speculator_root
        self._adapter_root = adapter_root
        self._folder = speculator_dir
        self._baseline = _Baseline()
        self.lock = asyncio.Lock()

    def speculator(self) -> dict[str, Any]:
        """Describes the current drafter, and its acceptance since its installation."""
        engine, baseline = self._async_engine.worker.engine, self._baseline
        counters = engine.counters
        before = baseline.accepted_per_position + (0,) * len(counters.accepted_per_position)
        reached = [now - then for now, then in zip(counters.accepted_per_position, before, strict=False)]
        num_drafts = counters.num_drafts - baseline.num_drafts
        counts = [num_drafts, *reached]  # [i]: verifications that accepted at least i tokens
        stats = SpeculationStats(
            num_spec_steps=num_drafts,
            num_draft_tokens=counters.num_draft_tokens - baseline.num_draft_tokens,
            num_accepted_draft_tokens=counters.num_accepted_tokens - baseline.num_accepted_tokens,
            num_spec_tokens=engine.drafter.max_depth,
            acceptance_histogram=[more - fewer for more, fewer in zip(counts, [*reached, 0], strict=True)],
        )
        return {
            "object": "speculator",
            "drafter": engine.drafter.name,
            "path": None if self._folder is None else str(self._folder),
            "metrics": metrics_block(stats),
        }

    async def swap_speculator(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replaces the drafter. Raises: InvalidRequest: the new one can't be loaded; the current drafter stays."""
        fields = Fields(body)
        reject_unknown(fields, known=("drafter", "path"))
        kind, folder = fields.string("drafter", ""), None
        if fields.get("path") is not None:
            folder = _below(self._speculator_root, fields.string("path", ""), param="path", option="--speculator-root")
        if "turbo_lora" in kind.split("+"):  # swapping its LoRA adapter would change running answers
            message = "turbo_lora includes a LoRA adapter, so it can only be set when the server starts"
            raise InvalidRequest(message, param="drafter", code="speculator_needs_restart", status=409)
        async with self.lock:
            self._async_engine.check_awake()  # a sleeping engine's weights read as zeros
            try:
                drafter = await asyncio.to_thread(self._load_drafter, kind, folder)
                await self._async_engine.call(lambda engine: engine.swap_drafter(drafter))
            except (EngineError, OSError, ValueError) as error:
                raise InvalidRequest(str(error)[:500], param="drafter", code="speculator_not_loadable") from error
            self._folder = folder
            counters = self._async_engine.worker.engine.counters
            self._baseline = _Baseline(
                counters.num_drafts,
                counters.num_draft_tokens,
                counters.num_accepted_tokens,
                tuple(counters.accepted_per_position),
            )
        logger.info("drafter %s from %s drafts now", kind, folder)
        return self.speculator()

    async def load_adapter(self, body: Mapping[str, Any]) -> str:
        """Loads an adapter. Raises: InvalidRequest: its name is in use, or the folder has no adapter for this model."""
        fields = Fields(body)
        reject_unknown(fields, known=("lora_name", "lora_path"))
        name = fields.string("lora_name", "")
        if not _ADAPTER_NAME.fullmatch(name):
            message = f"lora_name must be 1 to 128 letters, digits or . _ / : -, got {name[:80]!r}"
            raise InvalidRequest(message, param="lora_name")
        folder = _below(self._adapter_root, fields.string("lora_path", ""), param="lora_path", option="--adapter-root")
        async with self.lock:
            self._async_engine.check_awake()  # a sleeping engine's weights read as zeros
            adapters = self._async_engine.worker.engine.adapters
            if name == self._catalog.model_name or name in adapters.names:
                message = f"a model or an adapter is called {name!r} already"
                raise InvalidRequest(message, param="lora_name", code="name_taken", status=409)
            try:
                adapter = await asyncio.to_thread(adapters.read, name, folder)
            except (EngineError, OSError, ValueError) as error:
                raise InvalidRequest(str(error)[:500], param="lora_path", code="adapter_not_loadable") from error
            await self._async_engine.call(lambda engine: engine.adapters.put(adapter))
        logger.info("adapter %s from %s is loaded", name, folder)
        return f"Success: LoRA adapter '{name}' added successfully."

    async def unload_adapter(self, body: Mapping[str, Any]) -> str:
        """Unloads an adapter; running requests keep it. Raises: InvalidRequest: no adapter has this name."""
        fields = Fields(body)
        reject_unknown(fields, known=("lora_name", "lora_int_id"))
        name = fields.string("lora_name", "")
        async with self.lock:
            self._async_engine.check_awake()  # a sleeping engine's weights read as zeros
            if name not in self._async_engine.worker.engine.adapters.names:
                message = f"no adapter is called {name[:100]!r}"
                raise InvalidRequest(message, param="lora_name", code="adapter_not_found", status=404)
            await self._async_engine.call(lambda engine: engine.adapters.unload(name))
        logger.info("adapter %s is unloaded", name)
        return f"Success: LoRA adapter '{name}' removed successfully."


def _below(root: Path | None, path: str, *, param: str, option: str) -> Path:
    """Resolves the path and its symbolic links. Raises: InvalidRequest: the folder is not below `root`."""
    if root is None:
        raise InvalidRequest(f"{param} can't be given: the server was started without {option}", param=param)
    try:
        folder = (root / path).resolve()
        if path and folder.is_relative_to(root.resolve()) and folder.is_dir():
            return folder
    except (OSError, ValueError) as error:  # the path is too long, has a NUL, or its links form a loop
        raise InvalidRequest(f"{param} is no path: {type(error).__name__}", param=param) from error
    raise InvalidRequest(f"{param} must name a folder below {option}, got {path[:200]!r}", param=param)
