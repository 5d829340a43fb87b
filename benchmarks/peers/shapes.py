"""GPT-2 shapes of zeroplan's presets (core/families/gpt2/shapes.cc) and their FLOPs; needs no PyTorch."""
import dataclasses
import json
import pathlib


@dataclasses.dataclass(frozen=True)
class Shape:
    """`vocab` real tokens, `padded_vocab` rows of the embedding; the MLP is 4 * hidden wide."""
    layers: int
    hidden: int
    heads: int
    vocab: int = 50257
    positions: int = 1024

    @property
    def padded_vocab(self):
        return self.vocab if self.vocab <= 256 else -(-self.vocab // 128) * 128

    def params(self):
        """With the padded vocabulary, the tied head counted once."""
        c = self.hidden
        layer = 12 * c * c + 13 * c
        return (self.padded_vocab + self.positions) * c + self.layers * layer + 2 * c

    def flops_per_token(self, seq_len):
        """What forward and backward ask for (core/model/model_flops.h, TrainFlopsPerToken): matmul
        weights with the head of the real vocabulary, causal attention, no recompute."""
        c = self.hidden
        weights = 12 * self.layers * c * c + c * self.vocab
        return 6 * weights + 6 * self.layers * c * seq_len


PRESETS = {
    "gpt2": Shape(12, 768, 12),
    "gpt2-medium": Shape(24, 1024, 16),
    "gpt2-large": Shape(36, 1280, 20),
    "gpt2-xl": Shape(48, 1600, 25),
    "gpt3-1.3b": Shape(24, 2048, 16),
    "gpt3-2.7b": Shape(32, 2560, 32),
    "gpt3-6.7b": Shape(32, 4096, 32),
    "gpt3-13b": Shape(40, 5120, 40),
    "gpt2-10b": Shape(50, 4096, 32),
}

# FLOP/s of a dense bf16 product by the vendor's data sheet; MFU is measured against it.
H200_BF16_PEAK = 989.4e12


def load_shape(name_or_path):
    """A preset's name, a Hugging Face config.json, or a folder with one."""
    if name_or_path in PRESETS:
        return PRESETS[name_or_path]
    path = pathlib.Path(name_or_path)
    if path.is_dir():
        path = path / "config.json"
    if not path.exists():
        raise SystemExit(f"{name_or_path} is neither a preset ({', '.join(PRESETS)}) nor a file or "
                         "folder with a config.json")
    config = json.loads(path.read_text())
    if config.get("n_inner") not in (None, 4 * config["n_embd"]):
        raise SystemExit(f"{path}: n_inner {config['n_inner']} is not 4 * n_embd")
    return Shape(config["n_layer"], config["n_embd"], config["n_head"], config["vocab_size"],
                 config["n_positions"])
