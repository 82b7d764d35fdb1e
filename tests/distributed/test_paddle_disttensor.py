"""DistTensors as two real ranks see them."""

import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("describe_dist_tensors.py")


@pytest.mark.distributed
def test_r4_dist_tensors_lie_where_their_mesh_puts_them(paddle_launch, tmp_path):
    paddle_launch(SCRIPT, 2, [tmp_path])
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == {
        "model.rows": "[0:3, 0:3]",
        "model.columns": "[0:5, 0:2]",
        "model.replicated": "[0:5, 0:3]",
        "model.reversed": "[3:5, 0:3]",
        "model.two_dims": "[0:3, 0:3]",
    }
    assert second == {
        "model.rows": "[3:5, 0:3]",
        "model.columns": "[0:5, 2:3]",
        "model.replicated": "[0:5, 0:3]",
        "model.reversed": "[0:3, 0:3]",
        "model.elsewhere": "[0:5, 0:3]",
        "model.two_dims": "[3:5, 0:3]",
    }
