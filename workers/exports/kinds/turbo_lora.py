"""Medusa heads and the LoRA adapter of the target that was trained together with them."""

from collections.abc import Mapping
from typing import Any

from workers.exports.artifact import ArtifactKind
from workers.exports.kinds.medusa import check_heads, file_of


def _matches(config: Mapping[str, Any], *, has_adapter: bool) -> bool:
    return "medusa_num_heads" in config and has_adapter


KIND = ArtifactKind(check=check_heads, matches=_matches, file_of=file_of, has_adapter=True)
