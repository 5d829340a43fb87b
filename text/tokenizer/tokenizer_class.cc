#include "text/tokenizer/tokenizer_class.h"

#include <fmt/format.h>

namespace zeroplan {
namespace {

// The class that transformers 5.24 (models/auto/tokenization_auto.py) has for a type of model where
// the folder names none, or one that is known to be wrong. Types of models that make no text, and
// those whose class reads no BPE, are left out.
struct TypesOfClass {
  const char* name;
  std::string_view types;  // between blanks
};
constexpr TypesOfClass kTypes[] = {
    {"GPT2Tokenizer",
     " blip-2 codegen dbrx emu3 gpt2 gpt_neo gptj hyperclovax_vision_v2 instructblip "
     "instructblipvideo jais2 opt phi starcoder2 "},
    {"Qwen2Tokenizer",
     " audioflamingo3 colqwen2 cosmos3_omni dots3_note fun_asr_nano hunyuan_vl internvl "
     "lighton_ocr moss_transcribe_diarize ovis2 qianfan_ocr qwen2 qwen2_5_omni qwen2_5_vl "
     "qwen2_audio qwen2_moe qwen2_vl qwen3 qwen3_asr qwen3_moe qwen3_next qwen3_omni_moe qwen3_vl "
     "qwen3_vl_moe vibevoice "},
    {"GPTNeoXTokenizer", " falcon_mamba gpt_neox mamba mamba2 mpt olmo olmoe rwkv xlstm "},
    {"GemmaTokenizer",
     " diffusion_gemma gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text recurrent_gemma "
     "shieldgemma2 t5gemma zaya "},
    {"LlamaTokenizer", " idefics idefics2 "},
    {"CodeLlamaTokenizer", " code_llama "},
    {"CohereTokenizer", " aya_vision cohere cohere2 "},
    {"Qwen3_5Tokenizer", " qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen4_exp "},
    {"RobertaTokenizer",
     " bart bridgetower clap data2vec-text florence2 ibert led lilt longformer mega mra mvp "
     "roberta roberta-prelayernorm "},
    {kTokenizersBackend,
     " EvollaModel aria arctic beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr "
     "ernie4_5 ernie4_5_moe flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe "
     "glm_image glmasr got_ocr2 gpt_bigcode gradium_phonon_tts granite granitemoe "
     "granitemoehybrid granitemoeshared h2ovl_chat hyperclovax hyperclovax_vlm internlm2 "
     "internlm3 iquestcoder jamba kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash "
     "minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 "
     "mistral mistral3 mistral_large4 mixtral modernbert modernbert-decoder molmo molmo2 "
     "nemo_speechlm nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid omniasr opencua openvla "
     "paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral pocket_tts smolvlm "
     "stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl "},
};
// Types of which the folder's own class is known to be wrong, besides those of kTokenizersBackend,
// which that makes no difference for.
constexpr std::string_view kWrongClass =
    " hyperclovax_vision_v2 qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp ";
// Classes of transformers that make something of their own of a BPE tokenizer.json, or read other
// files, which is not done here. A class that transformers does not have takes the file as it is.
constexpr std::string_view kOtherClasses =
    " BartTokenizer BartphoTokenizer BertweetTokenizer BioGptTokenizer BlenderbotSmallTokenizer "
    "BlenderbotTokenizer ByT5Tokenizer CLIPTokenizer CTRLTokenizer CodeLlamaTokenizer "
    "CohereTokenizer CpmAntTokenizer CpmTokenizer DebertaTokenizer EsmcTokenizer FSMTTokenizer "
    "FlaubertTokenizer GPTNeoXJapaneseTokenizer GPTSw3Tokenizer HerbertTokenizer LEDTokenizer "
    "LayoutLMv3Tokenizer LukeTokenizer M2M100Tokenizer MarianTokenizer MarkupLMTokenizer "
    "MvpTokenizer NllbTokenizer NougatTokenizer OpenAIGPTTokenizer PLBartTokenizer "
    "PhobertTokenizer ProphetNetTokenizer Qwen3_5Tokenizer ReformerTokenizer RobertaTokenizer "
    "SeamlessM4TTokenizer Siglip2Tokenizer Tipsv2Tokenizer WhisperTokenizer XLMTokenizer ";

constexpr std::string_view kPlainModel =
    R"({"unk_token": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false})";
constexpr std::string_view kByteLevel =
    R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
constexpr std::string_view kByteLevelPre =
    R"({"type": "ByteLevel", "add_prefix_space": $SPACE, "trim_offsets": true, "use_regex": true})";
constexpr std::string_view kNfc = R"({"type": "NFC"})";

const std::vector<TokenizerClass>& Classes() {
  static const std::vector<TokenizerClass> classes = {
      {"GPT2Tokenizer",
       {{"unk_token", "<|endoftext|>"},
        {"bos_token", "<|endoftext|>"},
        {"eos_token", "<|endoftext|>"}},
       kPlainModel,
       "null",
       kByteLevelPre,
       kByteLevel},
      {"GPTNeoXTokenizer",
       {{"unk_token", "<|endoftext|>"},
        {"bos_token", "<|endoftext|>"},
        {"eos_token", "<|endoftext|>"},
        {"pad_token", "<|padding|>"}},
       kPlainModel,
       kNfc,
       kByteLevelPre,
       kByteLevel,
       false},
      {"Qwen2Tokenizer",
       {{"unk_token", "<|endoftext|>"},
        {"eos_token", "<|endoftext|>"},
        {"pad_token", "<|endoftext|>"}},
       kPlainModel,
       kNfc,
       R"#({"type": "Sequence", "pretokenizers": [
         {"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex":
          "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
         {"type": "ByteLevel", "add_prefix_space": $SPACE, "trim_offsets": true,
          "use_regex": false}]})#",
       kByteLevel},
      {"LlamaTokenizer",
       {{"unk_token", "<unk>"}, {"bos_token", "<s>"}, {"eos_token", "</s>"}},
       R"({"unk_token": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false})",
       "null",
       R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "$SCHEME", "split": false})",
       R"({"type": "Sequence", "decoders": [
         {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
         {"type": "ByteFallback"}, {"type": "Fuse"}$STRIP]})"},
      {"GemmaTokenizer",
       {{"unk_token", "<unk>"},
        {"bos_token", "<bos>"},
        {"eos_token", "<eos>"},
        {"pad_token", "<pad>"},
        {"mask_token", "<mask>"}},
       R"({"unk_token": $UNK, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false})",
       R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})",
       R"({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
           "invert": false})",
       R"({"type": "Sequence", "decoders": [
         {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
         {"type": "ByteFallback"}, {"type": "Fuse"}]})"},
  };
  return classes;
}

bool Among(std::string_view word, std::string_view words) {
  return !word.empty() && words.find(fmt::format(" {} ", word)) != std::string_view::npos;
}

}  // namespace

const TokenizerClass* FindTokenizerClass(std::string_view name) {
  for (const TokenizerClass& one : Classes()) {
    if (one.name == name) return &one;
  }
  return nullptr;
}

std::string TokenizerClassOfType(std::string_view type) {
  for (const TypesOfClass& known : kTypes) {
    if (Among(type, known.types)) return known.name;
  }
  return "";
}

bool HasWrongTokenizerClass(std::string_view type) { return Among(type, kWrongClass); }

bool IsOtherTokenizerClass(std::string_view name) { return Among(name, kOtherClasses); }

}  // namespace zeroplan
