"""Shapes of zeroplan's presets (core/families/*/shapes.cc) and their FLOPs; needs no PyTorch."""
import dataclasses
import json
import pathlib

# FLOP/s of a dense bf16 product by the vendor's data sheet; MFU is measured against it.
H200_BF16_PEAK = 989.4e12


class Shape:
    """`vocab` real tokens, `padded_vocab` rows of the embedding."""

    @property
    def padded_vocab(self):
        return self.vocab if self.vocab <= 256 else -(-self.vocab // 128) * 128

    def flops_per_token(self, seq_len):
        """What forward and backward ask for (core/model/model_spec.h, TrainFlopsPerToken): matmul
        weights with the head of the real vocabulary, causal attention, no recompute."""
        weights = self.layers * self.layer_matrices() + self.hidden * self.vocab
        return 6 * weights + 6 * self.layers * self.heads * self.head_size * seq_len


@dataclasses.dataclass(frozen=True)
class Gpt2Shape(Shape):
    """The MLP is 4 * hidden wide, the head the embedding."""
    layers: int
    hidden: int
    heads: int
    vocab: int = 50257
    positions: int = 1024

    @property
    def head_size(self):
        return self.hidden // self.heads

    @property
    def kv_heads(self):
        return self.heads

    def layer_matrices(self):
        return 12 * self.hidden**2

    def params(self):
        """With the padded vocabulary, the tied head counted once."""
        c = self.hidden
        layer = self.layer_matrices() + 13 * c
        return (self.padded_vocab + self.positions) * c + self.layers * layer + 2 * c


@dataclasses.dataclass(frozen=True)
class LlamaShape(Shape):
    """Llama, Mistral, Qwen2 and Qwen3. How positions are scaled is left out: it costs nothing."""
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    positions: int
    tied: bool = False
    theta: float = 10000.0
    eps: float = 1e-5
    qkv_bias: bool = False
    out_bias: bool = False  # of attention's output
    mlp_bias: bool = False
    qk_norm: bool = False

    def layer_matrices(self):
        attention = 2 * (self.heads + self.kv_heads) * self.head_size
        return self.hidden * (attention + 3 * self.ffn)

    def params(self):
        """With the padded vocabulary, a tied head counted once."""
        c = self.hidden
        layer = self.layer_matrices() + 2 * c
        layer += self.qkv_bias * (self.heads + 2 * self.kv_heads) * self.head_size
        layer += self.out_bias * c + self.mlp_bias * (2 * self.ffn + c)
        layer += self.qk_norm * 2 * self.head_size
        return (1 if self.tied else 2) * self.padded_vocab * c + self.layers * layer + c


def llama3(layers, hidden, heads, head_size, ffn, tied):
    return LlamaShape(layers, hidden, heads, 8, head_size, ffn, 128256, 131072, tied, 500000.0)


PRESETS = {
    "gpt2": Gpt2Shape(12, 768, 12),
    "gpt2-medium": Gpt2Shape(24, 1024, 16),
    "gpt2-large": Gpt2Shape(36, 1280, 20),
    "gpt2-xl": Gpt2Shape(48, 1600, 25),
    "gpt3-1.3b": Gpt2Shape(24, 2048, 16),
    "gpt3-2.7b": Gpt2Shape(32, 2560, 32),
    "gpt3-6.7b": Gpt2Shape(32, 4096, 32),
    "gpt3-13b": Gpt2Shape(40, 5120, 40),
    "gpt2-10b": Gpt2Shape(50, 4096, 32),
    "llama3.2-1b": llama3(16, 2048, 32, 64, 8192, True),
    "llama3.2-3b": llama3(28, 3072, 24, 128, 8192, True),
    "llama3.1-8b": llama3(32, 4096, 32, 128, 14336, False),
    "llama3.1-70b": llama3(80, 8192, 64, 128, 28672, False),
    "qwen2.5-1.5b": LlamaShape(28, 1536, 12, 2, 128, 8960, 151936, 131072, True, 1e6, 1e-6,
                               qkv_bias=True),
    "qwen2.5-7b": LlamaShape(28, 3584, 28, 4, 128, 18944, 152064, 131072, False, 1e6, 1e-6,
                             qkv_bias=True),
}


def llama_shape(config):
    """Of a config.json, in the style of transformers 4 or 5. Key defaults are transformers'."""
    heads = config["num_attention_heads"]
    kind = config["model_type"]
    bias = config.get("attention_bias", False)
    rope = config.get("rope_parameters") or config
    return LlamaShape(
        config["num_hidden_layers"], config["hidden_size"], heads,
        config.get("num_key_value_heads") or heads,
        config.get("head_dim") or config["hidden_size"] // heads, config["intermediate_size"],
        config["vocab_size"], config["max_position_embeddings"],
        config.get("tie_word_embeddings", False), rope.get("rope_theta", 10000.0),
        config.get("rms_norm_eps", 1e-6), qkv_bias=bias or kind == "qwen2", out_bias=bias,
        mlp_bias=config.get("mlp_bias", False), qk_norm=kind == "qwen3")


def gpt2_shape(config, path):
    if config.get("n_inner") not in (None, 4 * config["n_embd"]):
        raise SystemExit(f"{path}: n_inner {config['n_inner']} is not 4 * n_embd")
    return Gpt2Shape(config["n_layer"], config["n_embd"], config["n_head"], config["vocab_size"],
                     config["n_positions"])


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
    kind = config.get("model_type", "gpt2")
    if kind == "gpt2":
        return gpt2_shape(config, path)
    if kind in ("llama", "mistral", "qwen2", "qwen3"):
        return llama_shape(config)
    raise SystemExit(f"{path}: no peer for model_type {kind}")
