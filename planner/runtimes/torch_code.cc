#include "planner/runtimes/torch_code.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// ---- attention ----

// scaled_dot_product_attention by FlashAttention 2 or cuDNN: keeps its inputs, its output and the
// logarithms of the sums; backward adds dQ up in fp32, and where heads of keys are shared makes dK
// and dV of every query head (aten/src/ATen/native/transformers/cuda/attention_backward.cu).
constexpr CodePart kFlash = {
    "o2e b4n =i =j =l", "d2e D2k M2k x4e y4n u2u v2u -u -v -x -y -g -i -j -l -o -b", "", "", 1, 3};
// CUTLASS's memory-efficient kernels, which have no shared heads.
constexpr CodePart kEfficient = {
    "o2e b4n =i =j =l", "d2e D2k M2k x4e y4n -x -y -g -i -j -l -o -b", "", "", 1, 3};
// Products, and a softmax over all scores in fp32 (transformers' eager_attention_forward).
constexpr CodePart kEager = {
    "a2e b2e c2e e2s f2s -e h2s -f k4s m4s -k n2s -h p2e o2e -p -i -j -l",
    "q2e -g r2e s2s -q -b -n t4s -s u4s -t -m v2s -u w2s -v x2e d2e -w -a -c M2k -r D2k -x",
    "20e 4k 32s",
    "24e 4k 36s",
    11,
    11};
constexpr CodePart kEagerFp32 = {
    "a2e b2e c2e e2s f2s -e h4s -f k4s m2s -h n2e o2e -n -i -j -l",
    "p2e -g q2e r2s -p -b -m s4s -r t4s -s -k u2s -t v2s -u w2e d2e -v -a -c M2k -q D2k -w",
    "20e 4k 28s",
    "24e 4k 36s",
    10,
    11};

// ---- modules of PyTorch as they come ----

constexpr StyleCode kPlain = {.text = "plain PyTorch code",
                              .rms_norm = {"o2e b4t =i", "d2e W", "4e", "10e", 1, 2},
                              .layer_norm = {"o2e b8t =i", "d2e W", "4e", "10e", 1, 2},
                              .head_norm = {"=i", "W", "4e", "10e", 1, 2},
                              .rotary = {"o2r", "d2r", "20e 20k", "28e 28k", 10, 14},
                              .gated = {"a2e o2e =i =j", "D2e d2e -g -j -i -a", "10e", "18e", 2, 3},
                              .gelu = {"o2e =i", "d2e -g -i", "4e", "6e", 1, 1},
                              .add = {"o2e", "", "6e", "", 1, 0},
                              // Stacked, then laid out as the product has them.
                              .split = {"", "x2p d2p -g -x", "", "8p", 0, 2},
                              .flash = {"o2e b4n =i =j =l", "d2p x4e y4n -x -y", "", "", 1, 3},
                              .efficient = kEfficient,
                              .eager = kEager,
                              // Cast to fp32; log-softmax; backward: zeros, log-softmax, cast back.
                              .loss = {"a4e -i b4e -a", "c4e n4e -c -b d2e -n", "18e", "22e", 3, 4},
                              .padded_vocab = true};

constexpr StyleCode With(StyleCode code, void (*change)(StyleCode*)) {
  change(&code);
  return code;
}

constexpr StyleCode kPlainFp32 = With(kPlain, [](StyleCode* code) {
  code->stream_bytes = code->norm_bytes = 4;
  code->rms_norm = {"o4e b4t =i", "d4e W", "8e", "20e", 1, 2};
  code->layer_norm = {"o4e b8t =i", "d4e W", "8e", "20e", 1, 2};
  code->add = {"o4e", "D2e", "10e", "6e", 1, 1};
  code->eager = kEagerFp32;
});

// Inductor casts within its kernels.
constexpr StyleCode kCompiledFp32 = With(kPlainFp32, [](StyleCode* code) {
  code->norm_bytes = 2;
  code->rms_norm = {"o2e b4t =i", "d4e W", "6e", "14e", 1, 2};
  code->layer_norm = {"o2e b8t =i", "d4e W", "6e", "14e", 1, 2};
});

// ---- transformers 5.24: models/llama/modeling_llama.py and those like it ----

constexpr CodePart kHfRmsNorm = {
    "a4e b4e -b c4e e2e o2e -c -i",
    "f2e h2e -h -g -e W k4e -f m4e n4e -m -k p4e q4e r4e s4e -r -q -p -a t4e -n -s d2e -t",
    "36e",
    "92e",
    8,
    16};

constexpr StyleCode kHf = {
    .text =
        "transformers' models, with norms in copies in fp32 and the loss over all logits in fp32",
    .rms_norm = kHfRmsNorm,
    .layer_norm = {"o2e =i", "d2e -g -i W", "4e", "10e", 1, 2},
    .head_norm = kHfRmsNorm,
    .rotary = {"a2e b1e c2e -b e2e -c o2e -a -e f2k h1k k2k -h m2k -k O2k -f -m -i -j",
               "n2k p1k q2k -p r2k -n s2k -q -r t2k -G D2k -s -t u2e v1e w2e -v x2e -u y2e -w -x "
               "z2e -g d2e -y -z",
               "20e 20k", "28e 28k", 10, 14},
    .gated = {"a2e o2e =i =j", "D2e b2e -g -j -a d2e -b -i", "10e", "18e", 2, 3},
    .gelu =
        {"a2e b2e c2e -b e2e -c f2e -e h2e -f k2e o2e =i",
         "m2e n2e -g -k -a p2e -m -h q2e -p r2e s2e t2e u2e -t -s -r -i v2e -q -u w2e -n d2e -v -w",
         "36e", "56e", 8, 11},  // NewGELUActivation, of GPT-2
    .add = {"o2e -i -j", "d:g D:g", "6e", "", 1, 0},
    .split = {"", "d2p -g -G -H", "", "4p", 0, 1},
    .flash = kFlash,
    .efficient = kEfficient,
    .eager = kEager,
    .loss = {"a4e b4e -a -i", "-g c4e e4e -c -b d2e -e", "18e", "22e", 6, 4},
    .transformers = true};

// Autocast runs LayerNorm and powers in fp32.
constexpr StyleCode kHfAutocast = With(kHf, [](StyleCode* code) {
  code->layer_norm = {"a4e o4e -i", "b4e -g -a W d2e -b", "14e", "26e", 4, 5};
  code->gelu = {"a2e b4e c4e e4e -c f4e -e h4e -f k4e -h m4e o4e -i",
                "n4e p4e q2e -p -g -m -a r4e -n -k s4e -r t2e u4e -s v4e w4e x4e -w -v -u -b y2e "
                "-x z2e -t -y A2e -q d2e -z -A",
                "70e",
                "112e",
                9,
                14};
});

constexpr StyleCode kHfFp32 = With(kHfAutocast, [](StyleCode* code) {
  code->stream_bytes = code->norm_bytes = 4;
  code->rms_norm = {"a4e -a b4e o4e =i",
                    "c4e e4e -e -g -b W f4e h4e -f -c k4e m4e n4e p4e -n -m -k -i d4e -h -p",
                    "28e",
                    "92e",
                    6,
                    14};
  code->layer_norm = {"o4e =i", "d4e -g -i W", "8e", "20e", 1, 2};
  code->head_norm = {
      "a4e b4e -b c4e e2e o4e -c -i",
      "f4e h4e -h k2e -f -g -e W m4e -k n4e p4e -n -m q4e r4e s4e t4e -s -r -q -a u4e -p -t d2e -u",
      "38e",
      "108e",
      8,
      17};
  code->rotary = {
      "a4e b1e c2e -b e4e -c f4e -a -e h4k k1k m2k -k n4k -m p4k -h -n -i -j o2e O2k -f -p",
      "q4k -G r4e -g s4k t2k -s u1k v2k -u w2k -t x2k -v -w y4k z2k -y -q D2k -x -z A4e B2e -A C1e "
      "E2e -C F2e -B I2e -E -F J4e K2e -J -r d2e -I -K",
      "36e 36k",
      "54e 54k",
      12,
      20};
  code->add = {"o4e -i -j", "D2e d:g", "10e", "6e", 1, 1};
  code->eager = kEagerFp32;
});

// ---- liger-kernel 0.8 in these models: apply_liger_kernel_to_llama and those like it ----

constexpr CodePart kLigerRmsNorm = {"o2e =i", "-i W d:g", "4e", "6e", 1, 3};

constexpr void TakeLiger(StyleCode* code) {
  code->text =
      "transformers' models with Liger's kernels, which make the loss and its gradients by chunks";
  code->head_norm = kLigerRmsNorm;
  code->rotary = {"=i =j o:i O:j", "d:g D:G", "4e 4k", "4e 4k", 1, 1};
  code->gated = {"o2e =i =j", "-g d:i D:j", "6e", "10e", 1, 1};
  code->chunks = LossChunks::kByHidden;
  code->triton = true;
  code->fuses = false;
}

constexpr StyleCode kLiger = With(kHf, [](StyleCode* code) {
  TakeLiger(code);
  code->rms_norm = kLigerRmsNorm;
  code->loss = {"d2e -i", "-g W", "4e", "4e", 55, 3};
});
constexpr StyleCode kLigerAutocast = With(kLiger, [](StyleCode* code) {
  code->layer_norm = kHfAutocast.layer_norm;
  code->gelu = kHfAutocast.gelu;
});
constexpr StyleCode kLigerFp32 = With(kHfFp32, [](StyleCode* code) {
  TakeLiger(code);
  code->chunks_cast_head = true;  // of weight.t(), which autocast does not cache
  code->head_norm = {"o2e =i", "-i W d:g", "4e", "6e", 1, 2};
  code->rms_norm = {"o4e =i", "-i W d:g", "8e", "12e", 1, 2};
  code->loss = {"d4e -i", "-g W", "8e", "8e", 74, 3};
});

// ---- torchtune 0.6.1 ----

constexpr CodePart kTuneRmsNorm = {
    "a4e b4e -b c4e e4e o2e -e -i",
    "f4e -g h4e k4e -h -f -c W m4e n4e -m -k p4e q4e r4e s4e -r -q -p -a t4e -n -s d2e -t",
    "40e",
    "104e",
    8,
    17};

// MultiHeadAttention copies shared heads of keys and values for each query head.
constexpr StyleCode kTorchtune = With(kHf, [](StyleCode* code) {
  code->text =
      "torchtune's modules, with norms and rotary positions in fp32 and the loss by eighths";
  code->transformers = false;
  code->rms_norm = code->head_norm = kTuneRmsNorm;
  code->rotary = {
      "a4e b2e c2e e2e -b -c f2e h2e k2e -f -h m4e -k -e o2e -a -m -i n4k p2k q2k r2k -p -q s2k "
      "t2k u2k -s -t v4k -u -r O2k -n -v -j",
      "w4k -G x2k y4k -x z2k A4k -z B4k -y -A C2k E2k -C F4k -E I4k -B -F J2k -w K4k -J L4k -I -K "
      "D2k -L N4e -g P2e Q4e -P R2e S4e -R T4e -Q -S U2e V2e -U X4e -V Y4e -T -X Z2e -N b4e -Z c4e "
      "-Y -b d2e -c",
      "48e 48k",
      "92e 92k",
      18,
      28};
  code->flash = {"a2u c2u -ju -lu o2e b4n =i",
                 "d2e z2u w2u x4e y4n -x -y -g -i -a -c -j -l -o -b D2k M2k -z -w",
                 "4u 4k",
                 "6u 4k",
                 3,
                 5};
  code->chunks = LossChunks::kEight;  // CEWithChunkedOutputLoss
  code->loss = {"a4e b4e -a -i", "c4e -g e4e -c -b d2e -e", "18e", "22e", 3, 3};
});

// torch.nn.RMSNorm in 16 bit: one kernel forward.
constexpr CodePart kTorchRmsNorm = {"o2e b4t =i", "d2e -g -i W", "4e", "10e", 1, 2};

// ---- torchtitan 0.3.0, with FSDP2, which casts ----

constexpr StyleCode kTorchtitan = With(kHf, [](StyleCode* code) {
  code->text = "torchtitan's models, with the loss over all logits in fp32";
  code->transformers = false;
  code->rms_norm = code->head_norm = kTorchRmsNorm;
  code->rotary = {"a4e b4k c4e e4k o2e O2k -a -b -c -e -i -j",
                  "f4k -G h4e -g k1k m4k -k -f n1k p4e -n -h D2k -m d2e -p",
                  "20e 20k",
                  "20e 20k",
                  6,
                  8};
  code->loss = {"a4e b4e -a -i", "c4e -g e4e -c -b d2e -e", "18e", "22e", 3, 3};
});

// ---- llm-foundry 0.22: MPT with low_precision_layernorm and fused_crossentropy ----

constexpr StyleCode kComposer = With(kHf, [](StyleCode* code) {
  code->text = "llm-foundry's MPT, with norms in 16 bit and flash-attn's loss over 16-bit logits";
  code->transformers = false;
  code->rms_norm = code->head_norm = kTorchRmsNorm;
  code->layer_norm = {"o2e =i", "d2e -g -i W", "4e", "10e", 1, 2};
  code->gelu = {"o2e =i", "d2e -g -i", "4e", "6e", 1, 1};
  // flash-attn's loss keeps the logits, and makes their gradient in one kernel.
  code->loss = {"=i", "d2e -i", "2e", "4e", 1, 1};
});

}  // namespace

constexpr CodePart kCompiledLoss = {"=i", "d2e -i", "4e", "4e", 2, 1};
constexpr CodePart kCompiledGated = {"a2e o2e -a =i =j", "D2e d2e -g -j -i", "6e", "12e", 1, 1};

bool CodePart::Keeps(char given) const {
  const char word[] = {'=', given};
  return forward.find(std::string_view(word, 2)) != std::string_view::npos;
}

int CodePart::result_bytes() const {
  for (std::string_view words = forward; !words.empty();) {
    const CodeWord word = NextWord(&words);
    if (word.kind == CodeWord::kMakes && word.slot == 'o') return word.bytes;
  }
  return 2;
}

int64_t TorchElements::operator[](char element) const {
  switch (element) {
    case 'e':
      return e;
    case 'k':
      return k;
    case 'r':
      return r;
    case 'p':
      return p;
    case 't':
      return t;
    case 'n':
      return n;
    case 's':
      return s;
    case 'u':
      return u;
    case 'y':
      return y;
    case 'b':
      return b;
    case 'w':
      return w;
    case 'z':
      return z;
    case 'q':
      return q;
    case 'm':
      return m;
    case 'h':
      return h;
    case 'f':
      return f;
    case 'c':
      return c;
    case 'x':
      return x;
    default:
      ZEROPLAN_CHECK(false);
  }
}

TorchElements ElementsOf(int64_t batch, int64_t seq, int64_t heads, int64_t q_columns,
                         int64_t kv_columns, int64_t e) {
  const int64_t tokens = batch * seq, rows = batch * heads * seq;
  const bool shared = kv_columns != q_columns;
  return {e,
          tokens * kv_columns,
          tokens * (q_columns + kv_columns),
          tokens * (q_columns + 2 * kv_columns),
          tokens,
          rows,
          rows * seq,
          shared ? tokens * q_columns : 0,
          tokens * q_columns,
          tokens * seq};
}

CodeWord NextWord(std::string_view* words) {
  const std::string_view text = words->substr(0, words->find(' '));
  words->remove_prefix(std::min(words->size(), text.size() + 1));
  CodeWord word;
  if (text == "W") {
    word.kind = CodeWord::kParamGradients;
  } else if (text[0] == '-' || text[0] == '=') {
    word.kind = text[0] == '-' ? CodeWord::kFrees : CodeWord::kKeeps;
    word.slot = text[1];
    if (text.size() > 2) word.element = text[2];
  } else if (text[1] == ':') {
    word.kind = CodeWord::kRenames;
    word.slot = text[0];
    word.from = text[2];
  } else {
    word.slot = text[0];
    word.element = text.back();
    std::from_chars(text.data() + 1, text.data() + text.size() - 1, word.bytes);
  }
  return word;
}

double MovedBytes(std::string_view moves, const TorchElements& elements) {
  double sum = 0;
  while (!moves.empty()) {
    const std::string_view text = moves.substr(0, moves.find(' '));
    moves.remove_prefix(std::min(moves.size(), text.size() + 1));
    int bytes = 0;
    std::from_chars(text.data(), text.data() + text.size() - 1, bytes);
    sum += bytes * static_cast<double>(elements[text.back()]);
  }
  return sum;
}

const StyleCode& StyleCodeOf(CodeStyle style, bool fp32_params, bool autocast) {
  struct Row {
    const StyleCode &code, &autocast, &fp32;
  };
  static constexpr std::array<Row, kWords<CodeStyle>.size()> kRows = {{
      {kPlain, kPlain, kPlainFp32},
      {kHf, kHfAutocast, kHfFp32},
      {kLiger, kLigerAutocast, kLigerFp32},
      {kComposer, kComposer, kPlainFp32},
      {kTorchtitan, kTorchtitan, kPlainFp32},
      {kTorchtune, kTorchtune, kPlainFp32},
  }};
  const Row& row = kRows[static_cast<size_t>(style)];
  return fp32_params ? row.fp32 : autocast ? row.autocast : row.code;
}

const StyleCode& CompiledCode(bool fp32_params) { return fp32_params ? kCompiledFp32 : kPlain; }

TorchAttentionKernels TorchAttentionKernelsOf(TorchAttention attention, int compute_capability,
                                              bool shared_heads) {
  if (attention == TorchAttention::kEager) return TorchAttentionKernels::kEager;
  if (compute_capability == 0 || compute_capability >= 80) return TorchAttentionKernels::kFlash;
  return shared_heads ? TorchAttentionKernels::kEager : TorchAttentionKernels::kMemoryEfficient;
}

int64_t LossChunkTokens(LossChunks chunks, int64_t tokens, int64_t hidden, int64_t vocab) {
  const auto ceiling = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
  switch (chunks) {
    case LossChunks::kOne:
      return tokens;
    case LossChunks::kEight:
      return ceiling(tokens, 8);
    case LossChunks::kByHidden: {
      const int64_t parts = ceiling(vocab, hidden);
      const auto least = static_cast<uint64_t>(ceiling(tokens, parts));
      return std::min(tokens, static_cast<int64_t>(std::bit_ceil(least)));
    }
  }
  ZEROPLAN_CHECK(false);
}

}  // namespace zeroplan
