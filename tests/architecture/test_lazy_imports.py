"""`import flexstore` is cheap and pulls in no framework; a save of numpy arrays pulls in none either."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"paddle", "torch", "jax", "zarr", "tensorstore", "mpi4py"}
LIMIT_SECONDS = 0.15

PROBE = """
import json, sys, time
before = set(sys.modules)
start = time.process_time()
{code}
seconds = time.process_time() - start
print(json.dumps({{"seconds": seconds, "modules": sorted(set(sys.modules) - before)}}))
"""


def run(code: str, cwd: Path = ROOT) -> tuple[float, set[str]]:
    """CPU seconds and newly imported modules of ``code`` in a fresh interpreter."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n" + PROBE.format(code=code)]
    result = json.loads(subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout)
    return result["seconds"], set(result["modules"])


def test_import_pulls_in_only_itself():
    _, modules = run("import flexstore")
    assert {name for name in modules if name.startswith("flexstore")} == {"flexstore", "flexstore.version"}
    assert not modules & (FRAMEWORKS | {"numpy", "msgspec", "fsspec", "ml_dtypes", "google_crc32c"})


def test_import_is_fast():
    assert min(run("import flexstore")[0] for _ in range(3)) < LIMIT_SECONDS


def test_all_public_names_together_import_no_framework():
    _, modules = run("import flexstore as fs\nfor name in fs.__all__: getattr(fs, name)")
    assert not modules & FRAMEWORKS


def test_saving_and_loading_numpy_arrays_imports_no_framework(tmp_path):
    code = (
        "import numpy as np, flexstore as fs\n"
        "fs.save({'w': np.ones(3)}, 'checkpoint').result()\n"
        "fs.load({'w': np.zeros(3)}, 'checkpoint')"
    )
    _, modules = run(code, cwd=tmp_path)
    assert "flexstore.strategies.distcp.format" in modules
    assert not modules & FRAMEWORKS
