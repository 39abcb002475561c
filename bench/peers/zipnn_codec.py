"""ZipNN as a peer of the codec, one thread: the units of one image compressed or decompressed per line read.

usage: zipnn_codec.py REFERENCE_IMAGE IMAGE UNIT...

Requests: `prepare VARIANT` (before each `encode`: ZipNN reorders the bits of what it compresses in place, so it gets a copy),
`encode VARIANT`, `decode VARIANT` (what was encoded last), `check VARIANT` (all three, compared; answers with the bytes).
Variants: zipnn, and zipnn_delta, ZipNN's own delta against the reference. Each unit is compressed on its own, as a message is.
"""

import sys

from answers import answer, run


def main(reference_file, file, *names):
    import torch
    from safetensors import safe_open
    from zipnn import ZipNN

    def units_of(path):
        with safe_open(path, "pt") as image:
            return [image.get_tensor(name).view(torch.int16).numpy().tobytes() for name in names]

    originals, references = units_of(file), units_of(reference_file)
    plain = ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=1)
    delta = ZipNN(input_format="byte", bytearray_dtype="bfloat16", threads=1, delta_compressed_type="byte")
    units, compressed = [], {}

    def encode(variant):
        if variant == "zipnn":
            compressed[variant] = [plain.compress(unit) for unit in units]
        else:
            compressed[variant] = [delta.compress(unit, delta_second_data=held) for unit, held in zip(units, references)]

    def decode(variant):
        if variant == "zipnn":
            return [plain.decompress(message) for message in compressed[variant]]
        return [delta.decompress(message, delta_second_data=held) for message, held in zip(compressed[variant], references)]

    answer(ready=True)
    for line in sys.stdin:
        action, variant = line.split()
        if action in ("prepare", "check"):
            units[:] = map(bytearray, originals)
        if action in ("encode", "check"):
            encode(variant)
        if action in ("decode", "check"):
            decoded = decode(variant)
        if action == "check" and [bytes(words) for words in decoded] != originals:
            raise ValueError(f"{variant} does not give back what it was given")
        answer(bytes=sum(map(len, compressed.get(variant, []))))


if __name__ == "__main__":
    run(main)
