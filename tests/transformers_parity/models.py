"""Small random models of several families with tokenizers of their own, as folders that
transformers writes, and the program that is compared with it."""
import os
import pathlib
import subprocess
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
SKIP = 77
try:
    import tokenizers
    import torch
    import transformers
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(SKIP)

ROOT = pathlib.Path(__file__).resolve().parents[2]
VOCAB = 400
POSITIONS = 128
END = "<|endoftext|>"
SHAPE = dict(vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=POSITIONS,
             initializer_range=0.1)


def families(positions=POSITIONS):
    """By name, each of another kind: learned positions, grouped heads, biases, a tied head, norms
    of queries and keys."""
    made = {
        "gpt2": transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=48, n_layer=2, n_head=4, n_positions=POSITIONS,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, initializer_range=0.1),
        "llama": transformers.LlamaConfig(**SHAPE),
        "qwen2": transformers.Qwen2Config(**SHAPE, tie_word_embeddings=True),
        "mistral": transformers.MistralConfig(**SHAPE, sliding_window=None),
        "qwen3": transformers.Qwen3Config(**SHAPE, head_dim=16),
    }
    for config in made.values():
        config.max_position_embeddings = positions  # gpt2 calls it n_positions
        config.bos_token_id = config.eos_token_id = 0
        config.use_cache = True
    return made


def corpus():
    """Prose of the repository, a few hundred KB."""
    return [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]


def make_tokenizer(folder, template, begin):
    model = tokenizers.Tokenizer(tokenizers.models.BPE())
    model.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = tokenizers.decoders.ByteLevel()
    model.train_from_iterator(corpus(), tokenizers.trainers.BpeTrainer(
        vocab_size=VOCAB, show_progress=False,
        special_tokens=[END, "<|im_start|>", "<|im_end|>"] + ([begin] if begin else []),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    if begin:
        model.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, model.token_to_id(begin))])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, eos_token=END, bos_token=begin or END,
        clean_up_tokenization_spaces=False, chat_template=template).save_pretrained(folder)


def make_model(config, folder, template=None, seed=1, begin=None):
    """`begin`: a token that the tokenizer puts before each text."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32)
    model.save_pretrained(folder, safe_serialization=True)
    make_tokenizer(folder, template, begin)


def load_tokenizer(folder):
    """As zeroplan reads it, too: a class by the model's type, whose pre-tokenizer may be its own."""
    return transformers.AutoTokenizer.from_pretrained(folder)


def leave_norms_out_of_decay(model):
    """The Trainer decays no norms; up to 4.4x it knew only those of Llama among the RMS norms."""
    known = transformers.pytorch_utils.ALL_LAYERNORM_LAYERS
    for kind in {type(module) for module in model.modules()}:
        if kind.__name__.endswith("RMSNorm") and kind not in known:
            known.append(kind)


def run(program, *arguments, cache):
    """Its stdout; ends this script where it fails."""
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                          env={**os.environ, "ZEROPLAN_CACHE_DIR": str(cache)}, check=False)
    if done.returncode != 0:
        print(done.stderr)
        sys.exit(f"{' '.join(map(str, arguments))}: exit code {done.returncode}")
    return done.stdout


def relative(a, b):
    return abs(a - b) / max(abs(a), abs(b), 1e-30)
