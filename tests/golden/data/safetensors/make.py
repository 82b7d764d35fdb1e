"""Writes the samples beside this file with the real safetensors library (0.8.0, torch 2.13): `python make.py`."""

from pathlib import Path

import json

import numpy as np
import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
DTYPES = (
    "bool uint8 int8 int16 uint16 int32 uint32 int64 uint64 "
    "float16 bfloat16 float32 float64 complex64 float8_e4m3fn float8_e5m2"
).split()
SHAPES = {"scalar": (), "row": (3,), "block": (2, 3)}


def sample(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """0, 1, 0, 1, … for bool, else 0, 1, 2, …; exact in every type."""
    values = torch.from_numpy(np.arange(np.prod(shape, dtype=int)).reshape(shape))
    return (values % 2 if name == "bool" else values).to(getattr(torch, name))


def main() -> None:
    tensors = {f"{name}.{kind}": sample(name, shape) for name in DTYPES for kind, shape in SHAPES.items()}
    tensors["empty"] = torch.zeros(0, 4)
    for folder in ("single", "sharded"):
        (HERE / folder).mkdir(exist_ok=True)
    save_file(tensors, HERE / "single" / "model.safetensors", {"format": "pt", "note": "ünïcode"})
    names = sorted(tensors)
    parts = {f"model-0000{i + 1}-of-00002.safetensors": names[i::2] for i in range(2)}
    for file, keys in parts.items():
        save_file({key: tensors[key] for key in keys}, HERE / "sharded" / file, {"format": "pt"})
    index = {
        "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
        "weight_map": {key: file for file, keys in parts.items() for key in keys},
    }
    (HERE / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


if __name__ == "__main__":
    main()
