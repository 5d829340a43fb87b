"""GPT-2 in plain PyTorch, written so that torch.compile fuses what it can."""
import math

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.proj = nn.Linear(hidden, hidden)
        self.ln_2 = nn.LayerNorm(hidden)
        self.fc = nn.Linear(hidden, 4 * hidden)
        self.fc_proj = nn.Linear(4 * hidden, hidden)

    def forward(self, x_BTC):
        batch, length, hidden = x_BTC.shape
        qkv = self.qkv(self.ln_1(x_BTC)).view(batch, length, 3, self.heads, hidden // self.heads)
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))  # [B, heads, T, head]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.proj(y.transpose(1, 2).reshape(batch, length, hidden))
        return x_BTC + self.fc_proj(F.gelu(self.fc(self.ln_2(x_BTC)), approximate="tanh"))


def head_loss(x_BTC, ln_w, ln_b, wte_VC, targets_BT):
    """Last norm, tied head and mean cross entropy. Compiled, the fp32 logits are never stored."""
    x = F.layer_norm(x_BTC, (x_BTC.size(-1),), ln_w, ln_b)
    logits = F.linear(x, wte_VC)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets_BT.flatten())


class Gpt2(nn.Module):
    """No dropout. The output head is the embedding; forward returns the mean loss."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.wte = nn.Embedding(shape.padded_vocab, shape.hidden)
        self.wpe = nn.Embedding(shape.positions, shape.hidden)
        self.blocks = nn.ModuleList(Block(shape.hidden, shape.heads) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.hidden)
        self.head_loss = head_loss  # replaced where it is compiled by itself

    def forward(self, tokens_BT, targets_BT):
        x = self.wte(tokens_BT) + self.wpe.weight[:tokens_BT.size(1)]
        for block in self.blocks:
            x = block(x)
        return self.head_loss(x, self.ln_f.weight, self.ln_f.bias, self.wte.weight, targets_BT)

    @torch.no_grad()
    def init_weights(self, seed):
        """GPT-2's own. Of sharded parameters each rank fills its part, so seeds must differ."""
        torch.manual_seed(seed)
        for name, param in self.named_parameters():
            local = param.to_local() if hasattr(param, "to_local") else param
            if param.dim() == 1:
                local.fill_(1.0 if "ln_" in name and name.endswith("weight") else 0.0)
            else:
                residual = "proj.weight" in name  # proj and fc_proj write into the residual stream
                local.normal_(0, 0.02 / math.sqrt(2 * self.shape.layers) if residual else 0.02)
