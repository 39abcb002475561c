"""A steady step lives on the memory that earlier steps touched."""

from pathlib import Path
from statistics import median

import pytest
from program import Job, wait_until, write_config, write_text

PAGE = 4096
LARGE = 1 << 20


def page_faults(pid):
    """First touches of pages so far, of all threads."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[7])


def steps_done(run_dir):
    metrics = run_dir / "metrics.jsonl"
    return sum('"loss"' in line for line in metrics.read_text().splitlines()) if metrics.exists() else 0


@pytest.mark.parametrize("experts", ["exchange", "gather"])
def test_steady_steps_allocate_nothing_large(tmp_path, experts):
    """Rows and shares of experts differ from step to step, so a few pages more now
    and then are no leak."""
    write_text(tmp_path, size=60000)
    config = write_config(tmp_path, data__files=[str(tmp_path / "words.txt")], model__d_model=128, moe__d_expert=128,
                          model__max_seq_len=128, data__seq_len=128, train__batch_tokens=2048, train__steps=400,
                          parallel__experts=experts)
    run_dir = tmp_path / "run"
    fresh = []
    with Job("train", "--config", config, "--run-dir", run_dir, "--ranks", 2) as job:
        before = None
        for step in range(12, 27):
            wait_until(lambda: steps_done(run_dir) >= step or job.process.poll() is not None, 120)
            assert job.process.poll() is None, job.finish()
            now = page_faults(job.process.pid)
            if before is not None:
                fresh.append(PAGE * (now - before))
            before = now
    assert median(fresh) < LARGE, fresh
