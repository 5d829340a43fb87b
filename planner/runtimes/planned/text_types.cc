#include "planner/runtimes/planned/text_types.h"

#include <algorithm>
#include <iterator>

namespace zeroplan {
namespace {

// kv_heads 0: as many as heads; head_size 0: hidden over heads; expert_ffn 0: intermediate_size is
// the experts'.
constexpr TextType kTextTypes[] = {
    {"llama", 32, 4096, 32, 0, 0, 11008, 32000, 2048},
    {"mistral", 32, 4096, 32, 8, 0, 14336, 32000, 131072},
    {"qwen2", 32, 4096, 32, 32, 0, 22016, 151936, 32768, false, false, false, true},
    {"gemma2", 26, 2304, 8, 4, 256, 9216, 256000, 8192, true, true, false, false, false, 4096, 2,
     50, 30},
    {"gemma3_text", 26, 2304, 8, 4, 256, 9216, 262208, 131072, true, true, true, false, false, 4096,
     6},
    {"phi3", 32, 3072, 32, 0, 0, 8192, 32064, 4096, false, false, false, false, true},
    {"mixtral",
     32,
     4096,
     32,
     8,
     0,
     14336,
     32000,
     131072,
     false,
     false,
     false,
     false,
     false,
     0,
     0,
     0,
     0,
     8,
     2,
     0,
     0,
     "block_sparse_moe."},
    {"qwen3_moe", 24,    2048,  32, 4, 0, 6144, 151936, 32768, false, false,
     true,        false, false, 0,  0, 0, 0,    128,    8,     768},
    {"qwen2_moe", 24,   2048,  16, 16, 0, 5632, 151936, 32768, false, false,
     false,       true, false, 0,  0,  0, 0,    60,     4,     1408,  5632},
    {.type = "olmoe",
     .layers = 16,
     .hidden = 2048,
     .heads = 16,
     .ffn = 2048,
     .vocab = 50304,
     .positions = 4096,
     .qk_norm = true,
     .experts = 64,
     .experts_per_token = 8,
     .olmoe = true},
    {"qwen2_5_vl_text", 80, 8192, 64, 8, 0, 29568, 152064, 32768, false, false, false, true},
    {.type = "gpt_oss",
     .layers = 36,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_size = 64,
     .ffn = 2880,
     .vocab = 201088,
     .positions = 131072,
     .qkv_bias = true,
     .window = 128,
     .period = 2,
     .experts = 128,
     .experts_per_token = 4,
     .special = Special::kGptOss},
    {.type = "glm4_moe",
     .layers = 46,
     .hidden = 4096,
     .heads = 96,
     .kv_heads = 8,
     .head_size = 128,
     .ffn = 10944,
     .vocab = 151552,
     .positions = 131072,
     .experts = 128,
     .experts_per_token = 8,
     .expert_ffn = 1408,
     .special = Special::kGlm},
    {.type = "qwen3_next",
     .layers = 48,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 2,
     .head_size = 256,
     .ffn = 5120,
     .vocab = 151936,
     .positions = 32768,
     .qk_norm = true,
     .experts = 512,
     .experts_per_token = 10,
     .expert_ffn = 512,
     .shared_ffn = 512,
     .special = Special::kQwenMixed},
    {.type = "qwen3_5_moe",
     .layers = 40,
     .hidden = 2048,
     .heads = 16,
     .kv_heads = 2,
     .head_size = 256,
     .ffn = 512,
     .vocab = 248320,
     .positions = 32768,
     .qk_norm = true,
     .experts = 256,
     .experts_per_token = 8,
     .expert_ffn = 512,
     .shared_ffn = 512,
     .special = Special::kQwenMixed},
    {.type = "qwen3_5",
     .layers = 32,
     .hidden = 4096,
     .heads = 16,
     .kv_heads = 4,
     .head_size = 256,
     .ffn = 12288,
     .vocab = 248320,
     .positions = 32768,
     .qk_norm = true,
     .special = Special::kQwenMixed},
};

}  // namespace

std::span<const TextType> TextTypes() { return kTextTypes; }

const TextType* TextTypeNamed(std::string_view type) {
  const auto find = [](std::string_view name) {
    const auto* at = std::find_if(std::begin(kTextTypes), std::end(kTextTypes),
                                  [&](const TextType& row) { return row.type == name; });
    return at == std::end(kTextTypes) ? nullptr : at;
  };
  const TextType* row = find(type);
  constexpr std::string_view kText = "_text";
  if (row == nullptr && type.ends_with(kText)) {
    row = find(type.substr(0, type.size() - kText.size()));
  }
  return row;
}

}  // namespace zeroplan
