"""What README and docs name exists: linked files, configuration keys, options of the command line."""

import functools
import os
import re
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2]
MOESAIC = os.path.join(os.environ["MOESAIC_BUILD"], "moesaic")
PAGES = sorted([SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *(SOURCE / "docs").glob("*.md")])
# Written by the program itself; launch/test_cli.py holds the two together.
REFERENCE = (SOURCE / "docs" / "configuration.md").read_text()
FILES = {".bin", ".npy", ".md", ".h", ".cc", ".json"}  # train.bin and codec.json are no keys, but files


def keys():
    found, section = set(), ""
    for line in REFERENCE.splitlines():
        if head := re.match(r"## \[(\w+)\]", line):
            section = head[1]
        elif row := re.match(r"\| `(\w+)` \|", line):
            found.add(f"{section}.{row[1]}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
    bare = re.findall(r"^\[[\w./]+\.md\](?!\()", text, re.MULTILINE)
    assert not bare, f"{page.name}: {bare} has no target"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configuration_keys_exist(page):
    known = keys()
    sections = "|".join({key.split(".")[0] for key in known})
    for key in re.findall(rf"[`'\s](?:--set )?((?:{sections})\.[a-z_]+)(?=[`\s=])", page.read_text()):
        assert key in known or Path(key).suffix in FILES, f"{page.name} names {key}, which is no key"


@functools.cache
def options_of(command):
    shown = subprocess.run([MOESAIC, command, "--help"], capture_output=True, text=True, timeout=60, check=True)
    return set(re.findall(r"(?<![\w-])--[a-z-]+", shown.stdout))


def test_options_of_the_guide_exist():
    guide = (SOURCE / "docs" / "guide.md").read_text().replace("\\\n", " ")
    code = "\n".join(re.findall(r"```\w*\n(.*?)```", guide, re.DOTALL))
    calls = re.findall(r"moesaic (train|eval|generate|inspect|report|codec|calibrate) (.*)", code)
    assert len(calls) > 10
    for command, rest in calls:
        for option in re.findall(r"(?<=\s)--[a-z-]+", " " + rest.split("#")[0]):
            assert option in options_of(command), f"the guide gives {command} {option}, which it does not have"
