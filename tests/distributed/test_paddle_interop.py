"""Paddle loads what flexstore saved, and the reverse: 1, 2 and 4 ranks, each into another layout.

One launch per number of ranks, one test per promise.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flexstore as fs
from flexstore.errors import CheckpointExistsError, CorruptCheckpointError
from flexstore.testing import expected
from tests.distributed.launch import ROOT, launch_paddle
from tests.layout_kit import inverted, layout

pytestmark = pytest.mark.distributed

SCRIPTS = Path(__file__).parent / "scripts"
PADDLE_SAVES = ("shards", "replicas", "safetensors", "nested")


@dataclass(frozen=True)
class Job:
    """A job that has saved and loaded; what each rank wrote down, and where its checkpoints are."""

    ranks: list[dict[str, Any]]
    prefix: str


@pytest.fixture(scope="module", params=[1, 2, 4], ids="{} ranks".format)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder, world = tmp_path_factory.mktemp("interop"), request.param
    launch_paddle(SCRIPTS / "interop.py", world, [folder])
    return Job(
        [json.loads((folder / f"{world}-{rank}.json").read_text()) for rank in range(world)], f"{folder}/{world}-"
    )


@pytest.fixture
def paddle() -> Any:
    import paddle

    return paddle


def test_r9_d11_d28_what_paddle_saved_is_loaded_by_its_ranks_under_another_layout(job: Job) -> None:
    for outcome in job.ranks:
        assert outcome["flexstore loads"] == {name: [] for name in PADDLE_SAVES}


def test_x7_what_paddle_saved_is_loaded_where_paddle_is_not_imported(job: Job) -> None:
    """By three ranks (D11, D29)."""
    urls = [f"{job.prefix}{name}" for name in PADDLE_SAVES]
    command = [sys.executable, "-W", "error", str(SCRIPTS / "load_without_paddle.py"), *urls]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"wrong": {url: [] for url in urls}, "frameworks": []}


def test_a_checkpoint_of_paddle_is_known_to_have_no_checksums(job: Job) -> None:
    assert [fs.open_checkpoint(f"{job.prefix}{name}").info()["checksums"] for name in PADDLE_SAVES] == [False] * 4


def test_d11_d12_d13_paddle_reads_the_new_values_after_flexstore_has_overwritten(job: Job, paddle: Any) -> None:
    """In one process: flattened shards of up to 4 dimensions, and a replicated tensor that was cut into pieces.

    8-bit floats are left out: Paddle 3.3.1 cannot join their pieces, also when it wrote them itself.
    """
    from tests.paddle_kit import bits_of, tensor_of

    kinds = [cut for cut in layout(1, 0) if not cut.dtype.name.startswith("float8")]
    whole = {cut.key: expected(cut.key, cut.shape, cut.dtype) for cut in kinds}
    state = {key: tensor_of(inverted(values)) for key, values in whole.items()}
    large = np.arange(1536 * 2048, dtype=np.float32).reshape(1536, 2048)
    state["large"] = paddle.zeros(large.shape)
    paddle.distributed.load_state_dict(state, f"{job.prefix}flexstore")
    assert [key for key, values in whole.items() if bits_of(state[key]) != values.tobytes()] == []
    assert bits_of(state["large"]) == large.tobytes()
    assert {outcome["flexstore saves"]["pieces of the large one"] for outcome in job.ranks} == {min(2, len(job.ranks))}


def test_d13_paddle_reads_the_new_values_on_several_ranks(job: Job) -> None:
    assert [outcome["Paddle loads"] for outcome in job.ranks] == [[]] * len(job.ranks)


def test_d12_a_checkpoint_of_paddle_is_not_overwritten_unasked(paddle: Any, tmp_path: Path) -> None:
    paddle.distributed.save_state_dict({"w": paddle.zeros([3])}, str(tmp_path))
    with pytest.raises(CheckpointExistsError):
        fs.save({"w": np.ones(3, np.float32)}, tmp_path)
    assert fs.open_checkpoint(tmp_path)["w"].read().tolist() == [0, 0, 0]
    fs.save({"w": np.ones(3, np.float32)}, tmp_path, overwrite=True)
    assert fs.open_checkpoint(tmp_path)["w"].read().tolist() == [1, 1, 1]


def test_d12_d15_what_paddle_writes_over_our_files_is_noticed(paddle: Any, tmp_path: Path) -> None:
    """It takes the largest id that it finds for its own, and keeps the metadata of that id."""
    fs.save({"w": np.ones(3, np.float32)}, tmp_path)
    paddle.distributed.save_state_dict({"w": paddle.zeros([3])}, str(tmp_path))
    with pytest.raises(CorruptCheckpointError):
        fs.open_checkpoint(tmp_path)["w"].read()
