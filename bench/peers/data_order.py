"""The order in which a run reads its training windows, written again from the description in core/rng.h and train/data.h."""

import math

import numpy as np

U32, U64 = (1 << 32) - 1, (1 << 64) - 1


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & U32, (a >> 32) ^ c[3] ^ k[1], a & U32]
        k = [(k[0] + 0x9E3779B9) & U32, (k[1] + 0xBB67AE85) & U32]
    return c


def mix(z):
    """The finaliser of SplitMix64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & U64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & U64
    return z ^ (z >> 31)


def random_key(seed, name):
    """64-bit FNV-1a of the name, mixed with the seed."""
    value = 0xCBF29CE484222325
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & U64
    return mix(value ^ mix((seed + 0x9E3779B97F4A7C15) & U64))


def random_bits(key, index, lane):
    words = philox((index & U32, index >> 32, lane & U32, lane >> 32), (key & U32, key >> 32))
    return words[1] << 32 | words[0]


def random_permutation(key, size, index):
    """A Feistel network of six rounds on the next power of four, walked until it lands inside."""
    half = 1
    while 1 << (2 * half) < size:
        half += 1
    mask = (1 << half) - 1
    value = index
    while True:
        left, right = value >> half, value & mask
        for lane in range(6):
            left, right = right, left ^ (random_bits(key, right, lane) & mask)
        value = left << half | right
        if value < size:
            return value


class TrainingData:
    """One byte file: its training windows, and batch i of a run."""

    def __init__(self, file, seq_len, batch_sequences, held_out_fraction=0.1, seed=1):
        tokens = np.frombuffer(file.read_bytes(), dtype=np.uint8).astype(np.int64)
        training = tokens[: len(tokens) - math.floor(held_out_fraction * len(tokens))]
        self.num_windows = (len(training) - 1) // seq_len
        self.windows = np.stack([training[w * seq_len : w * seq_len + seq_len + 1] for w in range(self.num_windows)])
        self.batch_sequences = batch_sequences
        self.seed = seed

    def window_of(self, sample):
        epoch, position = divmod(sample, self.num_windows)
        return random_permutation(random_key(self.seed, f"training windows of epoch {epoch}"), self.num_windows, position)

    def batch(self, step):
        """Inputs and targets [B,S] of step `step` (from 0)."""
        first = step * self.batch_sequences
        rows = self.windows[[self.window_of(first + i) for i in range(self.batch_sequences)]]
        return rows[:, :-1], rows[:, 1:]
