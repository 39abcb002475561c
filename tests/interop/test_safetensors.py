"""Files of the `safetensors` package and of Moesaic load in each other."""

import os
import pathlib
import subprocess

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file


def test_files_load_on_both_sides(tmp_path):
    save_file(
        {
            "f32": torch.arange(6, dtype=torch.float32).reshape(2, 3),
            "bf16": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
            "i64": torch.tensor([-7]),
            "empty": torch.zeros(0, 4, dtype=torch.float16),
        },
        tmp_path / "from_python.safetensors",
        metadata={"writer": "python"},
    )
    binary = pathlib.Path(os.environ["MOESAIC_BUILD"]) / "interop_test"
    result = subprocess.run(
        [binary, "--gtest_filter=SafetensorsPython.*"],
        env={**os.environ, "MOESAIC_SAFETENSORS_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0 and "SKIPPED" not in result.stdout, result.stdout + result.stderr

    written = tmp_path / "from_moesaic.safetensors"
    tensors = load_file(written)
    assert sorted(tensors) == ["bf16", "empty", "f32", "i64", "u8"]
    assert torch.equal(tensors["f32"], torch.arange(6, dtype=torch.float32).reshape(2, 3))
    assert torch.equal(tensors["bf16"], torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
    assert torch.equal(tensors["u8"], torch.tensor([1, 2, 255], dtype=torch.uint8))
    assert tensors["i64"].shape == () and tensors["i64"].item() == -7
    assert tensors["empty"].shape == (0, 4) and tensors["empty"].dtype == torch.float16
    with safe_open(written, "pt") as file:
        assert file.metadata() == {"writer": "moesaic"}
