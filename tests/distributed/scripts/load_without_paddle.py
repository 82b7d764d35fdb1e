"""Load checkpoints with numpy alone, by three ranks that are threads: ``load_without_paddle.py CHECKPOINT...``.

Prints, as JSON, the tensors that came out wrong by checkpoint, and which frameworks were imported. Only what the
checkpoint holds is asked for.
"""

from __future__ import annotations

import json
import sys

import flexstore as fs
from flexstore.groups.threads import ThreadGroup, run
from tests.layout_kit import layout
from tests.stories_kit import contents, filled, zeroed

WORLD, TURN = 3, 4


def wrong(url: str) -> list[str]:
    held = fs.open_checkpoint(url)
    cuts = [cut for cut in layout(WORLD, TURN) if cut.key in held]

    def load(group: ThreadGroup) -> set[str]:
        state = zeroed(cuts, group.rank)
        fs.load(state, url, group=group)
        got, want = contents(state), contents(filled(cuts, group.rank))
        return {key for key in want if got[key] != want[key]}

    return sorted({*(held.keys() - {cut.key for cut in cuts}), *set().union(*run(WORLD, load))})


if __name__ == "__main__":
    outcome = {url: wrong(url) for url in sys.argv[1:]}
    print(json.dumps({"wrong": outcome, "frameworks": sorted({"paddle", "torch"} & sys.modules.keys())}))  # noqa: T201
