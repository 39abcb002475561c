"""Checkpoints whose checksums are right and whose content is not."""

import json


def crc32c(data):
    """Castagnoli's, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def rewrite_manifest(checkpoint, change):
    """change(body) changes what the manifest says."""
    file = checkpoint / "manifest.json"
    body = json.loads(file.read_text())["manifest"]
    change(body)
    text = json.dumps(body, separators=(",", ":"), sort_keys=True)
    file.write_text(json.dumps({"manifest": body, "crc32c": f"{crc32c(text.encode()):08x}"}))


def describe_again(checkpoint, *files):
    """The manifest, of files that were changed."""
    def change(body):
        for entry in body["files"]:
            if checkpoint / entry["name"] in files:
                content = (checkpoint / entry["name"]).read_bytes()
                entry.update(bytes=len(content), crc32c=f"{crc32c(content):08x}")

    rewrite_manifest(checkpoint, change)
