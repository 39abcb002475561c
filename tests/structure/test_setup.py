"""Set-up names what is missing, and the command that gets it, to somebody who is not root."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]


def run_setup_as_user(packages):
    nobody = 65534
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        (tree / "tools").mkdir()
        shutil.copy(SOURCE / "tools" / "setup.sh", tree / "tools")
        (tree / "packages.txt").write_text(packages)
        identity = {}
        if os.getuid() == 0:
            for path in [tree, *tree.rglob("*")]:
                os.chown(path, nobody, nobody)
            identity = {"user": nobody, "group": nobody, "extra_groups": []}
        return subprocess.run(["bash", tree / "tools" / "setup.sh", tree / "packages.txt"], cwd=tree,
                              capture_output=True, text=True, timeout=60, **identity)


def test_missing_packages_are_named_with_the_command():
    run = run_setup_as_user("# a comment\nbash  the shell\nmoesaic-no-such-b  why\nmoesaic-no-such-a\n")
    assert run.returncode == 1
    assert "missing Debian packages: moesaic-no-such-a moesaic-no-such-b\n" in run.stderr
    assert "apt-get install --no-install-recommends -y moesaic-no-such-a moesaic-no-such-b\n" in run.stderr
    assert "Traceback" not in run.stderr


def test_installed_packages_are_not_asked_for():
    # It then goes on to Python, and stops there: this tree has no requirements files.
    run = run_setup_as_user("bash  the shell\n")
    assert run.returncode != 0
    assert "apt-get" not in run.stderr
    assert "requirements.txt" in run.stderr
