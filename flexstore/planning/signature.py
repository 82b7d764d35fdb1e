"""The digest under which a save plan may be reused.

Two surveys of one rank with the same signature lead to the same plan, if the other ranks' signatures did not change
either. Everything that the plan depends on is in it, so that a cached plan never writes stale shapes (X3). The plain
*values* are not: they change from step to step and are merged anew (`flexstore.planning.merge.merge_common`) into a
reused plan; their names and paths are, since they must not collide with tensors.
"""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from flexstore.planning.items import Survey


def signature(survey: Survey, world_size: int, strategy: str) -> bytes:
    """Digest of what one rank contributes to a save plan: names, dtypes, shapes, axes, paths, boxes.

    Args:
        survey: of this rank.
        world_size: number of ranks.
        strategy: full name of the strategy; it decides whether replicas are split.

    Returns:
        32 bytes. Another order of the same boxes gives another digest, which costs a new plan and no more.
    """
    tensors = [(t.key, t.dtype.name, t.shape, t.path, t.declared_axis) for t in survey.tensors]
    names = [(name, survey.common_paths.get(name)) for name in survey.common]
    # The repr of nested tuples of str, int and None is injective: strings are quoted and escaped in it.
    text = repr((survey.rank, world_size, strategy, tensors, names, survey.offset.shape))
    digest = blake2b(text.encode(), digest_size=32)
    for column in (survey.tensor, survey.offset, survey.shape):
        digest.update(np.asarray(column, np.int64).tobytes())
    return digest.digest()
