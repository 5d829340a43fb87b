"""Llama, Mistral, Qwen2 and Qwen3 in plain PyTorch, written so that torch.compile fuses what it can.

Legend: B batch, T sequence, C hidden, H heads of queries, G of keys and values, D head size.
"""
import torch
import torch.nn.functional as F
from torch import nn

INIT_STD = 0.02


class Linear(nn.Linear):
    def reset_parameters(self):
        nn.init.normal_(self.weight, 0, INIT_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    def reset_parameters(self):
        nn.init.normal_(self.weight, 0, INIT_STD)


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotary_tables(shape, first, length, device):
    """cos and sin of `length` positions from `first` and every pair, [T, D] each, in bf16, as transformers rounds them."""
    pairs = torch.arange(0, shape.head_size, 2, device=device, dtype=torch.float32)
    frequencies = shape.theta ** (-pairs / shape.head_size)
    angles = torch.arange(first, first + length, device=device, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat((angles, angles), -1)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def rotate(x_BHTD, cos_TD, sin_TD):
    low, high = x_BHTD.chunk(2, -1)
    return x_BHTD * cos_TD + torch.cat((-high, low), -1) * sin_TD


def swiglu(gate, up):
    return F.silu(gate) * up


def compile_parts(**options):
    """What of a block is more than one kernel, where blocks cannot be compiled whole."""
    global rotate, swiglu
    rotate, swiglu = torch.compile(rotate, **options), torch.compile(swiglu, **options)


def attend(q_BHTD, k_BGTD, v_BGTD, window):
    """Causal attention; with a window within pieces of so many tokens: tensors of the same sizes, little work."""
    if window:
        q_BHTD, k_BGTD, v_BGTD = (x.unflatten(2, (-1, window)).transpose(1, 2).flatten(0, 1)
                                  for x in (q_BHTD, k_BGTD, v_BGTD))
    y = F.scaled_dot_product_attention(q_BHTD, k_BGTD, v_BGTD, is_causal=True,
                                       enable_gqa=q_BHTD.size(1) != k_BGTD.size(1))
    return y.transpose(1, 2).flatten(2)


class Block(nn.Module):
    attention_window = 0  # tokens; 0: all of the sequence

    def __init__(self, shape):
        super().__init__()
        c, d = shape.hidden, shape.head_size
        self.head_size = d
        self.norm_1 = RmsNorm(c, shape.eps)
        self.q_proj = Linear(c, shape.heads * d, bias=shape.qkv_bias)
        self.k_proj = Linear(c, shape.kv_heads * d, bias=shape.qkv_bias)
        self.v_proj = Linear(c, shape.kv_heads * d, bias=shape.qkv_bias)
        self.q_norm = RmsNorm(d, shape.eps) if shape.qk_norm else nn.Identity()
        self.k_norm = RmsNorm(d, shape.eps) if shape.qk_norm else nn.Identity()
        self.out_proj = Linear(shape.heads * d, c, bias=shape.out_bias)
        self.norm_2 = RmsNorm(c, shape.eps)
        self.gate_proj = Linear(c, shape.ffn, bias=shape.mlp_bias)
        self.up_proj = Linear(c, shape.ffn, bias=shape.mlp_bias)
        self.down_proj = Linear(shape.ffn, c, bias=shape.mlp_bias)

    def heads(self, x_BTN):
        """[B, T, heads * D] as [B, T, heads, D]."""
        return x_BTN.view(*x_BTN.shape[:2], -1, self.head_size)

    def forward(self, x_BTC, cos_TD, sin_TD):
        h = self.norm_1(x_BTC)
        q = self.q_norm(self.heads(self.q_proj(h))).transpose(1, 2)
        k = self.k_norm(self.heads(self.k_proj(h))).transpose(1, 2)
        v = self.heads(self.v_proj(h)).transpose(1, 2)
        y_BTC = attend(rotate(q, cos_TD, sin_TD), rotate(k, cos_TD, sin_TD), v,
                       self.attention_window)
        x_BTC = x_BTC + self.out_proj(y_BTC.view(*x_BTC.shape[:2], -1))
        return x_BTC + self.mlp(self.norm_2(x_BTC))

    def mlp(self, h):
        return self.down_proj(swiglu(self.gate_proj(h), self.up_proj(h)))


def mean_loss(logits_BTV, targets_BT):
    """Compiled, the fp32 logits are never stored."""
    return F.cross_entropy(logits_BTV.flatten(0, 1).float(), targets_BT.flatten())


class Llama(nn.Module):
    """forward returns the mean loss. What is used outside blocks are whole modules, so that those
    who shard parameters find them."""
    first_position = 0  # of the tokens, in their sequence

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.embed = Embedding(shape.padded_vocab, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.hidden, shape.eps)
        self.lm_head = Linear(shape.hidden, shape.padded_vocab, bias=False)
        if shape.tied:
            self.lm_head.weight = self.embed.weight
        self.head_loss = mean_loss  # replaced where it is compiled by itself

    def forward(self, tokens_BT, targets_BT):
        cos_TD, sin_TD = rotary_tables(self.shape, self.first_position, tokens_BT.size(1), tokens_BT.device)
        x_BTC = self.embed(tokens_BT)
        for block in self.blocks:
            x_BTC = self.run_block(block, x_BTC, cos_TD, sin_TD)
        return self.loss(self.norm(x_BTC), targets_BT)

    def run_block(self, block, *inputs):
        return block(*inputs)

    def loss(self, x_BTC, targets_BT):
        return self.head_loss(self.lm_head(x_BTC), targets_BT)

    @torch.no_grad()
    def init_weights(self, seed):
        """Of sharded parameters each rank fills its part, so seeds must differ."""
        torch.manual_seed(seed)
        for name, param in self.named_parameters():
            local = param.to_local() if hasattr(param, "to_local") else param
            if param.dim() == 1:
                local.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                local.normal_(0, INIT_STD)
