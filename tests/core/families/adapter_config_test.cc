// adapter_config.json: every key of PEFT's, which linears of which layers it names, and patterns.
#include "core/families/adapter_config.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/families/name_pattern.h"
#include "core/model/lora.h"
#include "tests/core/families/llama/tiny_llama.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/tiny_model.h"
#include "tests/wordings/core.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;

// Four layers of q, k, v, o, gate, up and down.
ModelSpec FourLayers() {
  ModelSpec spec = testing::TinyLlama(Llama());
  spec.layers = 4;
  return spec;
}

Json Config(const Json& more) {
  Json config = {
      {"peft_type", "LORA"}, {"r", 4}, {"lora_alpha", 8}, {"target_modules", {"q_proj"}}};
  config.update(more);
  return config;
}

ModelSpec ReadText(const std::string& text, AdapterUse use = AdapterUse::kMerge,
                   const ModelSpec& model = FourLayers()) {
  const TempDir dir;
  std::ofstream(dir.path(kAdapterConfigFile)) << text;
  return WithAdapter(model, dir.path(), use);
}

ModelSpec Read(const Json& more, AdapterUse use = AdapterUse::kMerge) {
  return ReadText(Config(more).dump(2), use);
}

std::string Refused(const Json& more, AdapterUse use = AdapterUse::kMerge) {
  return ErrorOf(ExitCode::kUsage, [&] { Read(more, use); });
}

TEST_CASE("adapter config: what a key does is known, or it is refused by name") {
  const ModelSpec plain = Read(Json::object());
  // As PEFT 0.21 writes a default LoraConfig.
  const ModelSpec all = Read({{"task_type", "CAUSAL_LM"},
                              {"auto_mapping", nullptr},
                              {"peft_version", "0.21.2"},
                              {"base_model_name_or_path", "some/model"},
                              {"revision", nullptr},
                              {"inference_mode", true},
                              {"exclude_modules", nullptr},
                              {"fan_in_fan_out", false},
                              {"bias", "none"},
                              {"use_rslora", false},
                              {"modules_to_save", nullptr},
                              {"init_lora_weights", true},
                              {"layers_to_transform", nullptr},
                              {"layers_pattern", nullptr},
                              {"rank_pattern", Json::object()},
                              {"alpha_pattern", Json::object()},
                              {"megatron_config", nullptr},
                              {"megatron_core", "megatron.core"},
                              {"trainable_token_indices", nullptr},
                              {"loftq_config", Json::object()},
                              {"eva_config", nullptr},
                              {"corda_config", nullptr},
                              {"lora_ga_config", nullptr},
                              {"use_dora", false},
                              {"velora_config", nullptr},
                              {"alora_invocation_tokens", nullptr},
                              {"use_qalora", false},
                              {"qalora_group_size", 16},
                              {"monteclora_config", nullptr},
                              {"layer_replication", nullptr},
                              {"lora_bias", false},
                              {"target_parameters", nullptr},
                              {"use_bdlora", nullptr},
                              {"arrow_config", nullptr},
                              {"kasa_config", nullptr},
                              {"ensure_weight_tying", false},
                              {"runtime_config", {{"ephemeral_gpu_offload", true}}},
                              {"of_a_later_peft", nullptr}});
  CHECK(WriteAdapterConfig(all, "x") == WriteAdapterConfig(plain, "x"));
  const std::pair<const char*, Json> passed[] = {{"init_lora_weights", false},
                                                 {"init_lora_weights", "gaussian"},
                                                 {"init_lora_weights", "eva"},
                                                 {"init_lora_weights", "orthogonal"},
                                                 {"init_lora_weights", nullptr},
                                                 {"eva_config", {{"rho", 2.0}}},
                                                 {"fan_in_fan_out", true},
                                                 {"of_a_later_peft", false},
                                                 {"of_a_later_peft", ""},
                                                 {"of_a_later_peft", Json::array()},
                                                 {"of_a_later_peft", Json::object()}};
  for (const auto& [key, value] : passed) {
    CAPTURE(key);
    CAPTURE(value.dump());
    CHECK(WriteAdapterConfig(Read({{key, value}}), "x") == WriteAdapterConfig(plain, "x"));
  }
  const std::pair<const char*, Json> refused[] = {
      {"use_dora", true},
      {"lora_bias", true},
      {"bias", "all"},
      {"bias", "lora_only"},
      {"use_qalora", true},
      {"layer_replication", Json::array({Json::array({0, 4}), Json::array({2, 4})})},
      {"target_parameters", {"feed_forward.experts.gate_up_proj"}},
      {"alora_invocation_tokens", {1, 2}},
      {"use_bdlora", {{"nblocks", 2}}},
      {"use_bdlora", Json::object()},
      {"arrow_config", {{"top_k", 3}}},
      {"kasa_config", {{"beta", 1e-4}}},
      {"monteclora_config", Json::object()},
      {"velora_config", {{"scale", 1.0}}},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "PiSSA_niter_16"},
      {"init_lora_weights", "olora"},
      {"init_lora_weights", "corda"},
      {"init_lora_weights", "lora_ga"},
      {"init_lora_weights", "loftq"},
      {"init_lora_weights", "of_a_later_peft"},
      {"init_lora_weights", 1},
      {"of_a_later_peft", true},
      {"of_a_later_peft", "yes"},
      {"of_a_later_peft", 0},
      {"of_a_later_peft", {{"a", 1}}},
      {"r", "auto"},
      {"use_dora", "auto"}};
  for (const auto& [key, value] : refused) {
    CAPTURE(key);
    CAPTURE(value.dump());
    const std::string said = Refused({{key, value}});
    CHECK(Has(said, std::string("adapter_config.json:")));
    CHECK(Has(said, std::string(": ") + key + ": "));
  }
  CHECK(Has(Refused({{"init_lora_weights", "pissa_niter_4"}}),
            "path_initial_model_for_weight_conversion"));
  CHECK(Has(Refused({{"alora_invocation_tokens", {1}}}), "PEFT alone runs it"));
  CHECK(Has(Refused({{"use_dora", true}}), "DoRA"));
  // It changes how PEFT trains, not what it has trained.
  const Json mica = {{"init_lora_weights", "mica"}};
  CHECK(WriteAdapterConfig(Read(mica), "x") == WriteAdapterConfig(plain, "x"));
  CHECK(Has(Refused(mica, AdapterUse::kTrain), wording::kTrainOnInPeft));
  const std::string twice = "{\"peft_type\": \"LORA\",\n\"r\": 8,\n\"r\": 16}";
  CHECK(
      Has(ErrorOf(ExitCode::kUsage, [&] { ReadText(twice); }), wording::kAdapterConfigJsonTheKey));
  const std::string inner =
      "{\"peft_type\": \"LORA\", \"rank_pattern\": {\"q_proj\": 1,\n"
      "\"q_proj\": 2}}";
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ReadText(inner); }), wording::kTheKeyIsGivenTwice));
}

std::string Targets(const Json& more) { return Read(more).lora_targets; }

TEST_CASE("adapter config: linears of all layers are named as the file has them") {
  CHECK(Targets({{"target_modules", {"v_proj", "q_proj"}}}) == "v_proj,q_proj");
  CHECK(Targets({{"target_modules", "all-linear"}}) == "all-linear");
  CHECK(Targets({{"target_modules", "ALL-linear"}}) == "all-linear");
  // A name that the model does not have says nothing, as to PEFT.
  CHECK(Targets({{"target_modules", {"q_proj", "c_attn"}}}) == "self_attn.q_proj");
  CHECK(Has(Refused({{"target_modules", {"c_attn"}}}), "no linear has an adapter"));
  for (const Json& none : {Json(nullptr), Json::array(), Json("")}) {
    CHECK(Has(Refused({{"target_modules", none}}), "target_modules: "));
  }
  for (const Json& wrong :
       {Json(3), Json::array({1}), Json::array({"q_proj,v_proj"}), Json(true)}) {
    CAPTURE(wrong.dump());
    CHECK(Has(Refused({{"target_modules", wrong}}), "target_modules: "));
    CHECK(Has(Refused({{"exclude_modules", wrong}}), "exclude_modules: "));
  }
  CHECK(Has(Refused({{"target_modules", {"q_proj", "lm_head"}}}), "lm_head would have an adapter"));
  CHECK(Has(Refused({{"target_modules", {"q_proj", "embed_tokens"}}}), "model.embed_tokens would"));
  CHECK(Has(Refused({{"target_modules", ".*"}}), "would have an adapter"));
  // What is trained whole has none.
  CHECK(Targets({{"target_modules", {"o_proj", "lm_head"}}, {"modules_to_save", {"lm_head"}}}) ==
        "self_attn.o_proj");
  CHECK(Targets({{"target_modules", {"o_proj", "q_proj"}}, {"modules_to_save", {"o_proj"}}}) ==
        "o_proj,q_proj");  // which lora_saved leaves out
  CHECK(NamesOfAdapters(
            Read({{"target_modules", {"o_proj", "q_proj"}}, {"modules_to_save", {"o_proj"}}}))
            .modules == std::vector<std::string>{"q_proj"});
  CHECK(Has(Refused({{"modules_to_save", "lm_head"}}), "modules_to_save: "));
}

TEST_CASE("adapter config: some layers alone, as PEFT chooses them") {
  CHECK(Targets({{"layers_to_transform", 2}}) == "self_attn.q_proj@2");
  CHECK(Targets({{"layers_to_transform", {0, 1, 3}}}) == "self_attn.q_proj@0-1,self_attn.q_proj@3");
  CHECK(Targets({{"layers_to_transform", {0, 1, 2, 3, 40}}}) == "q_proj");
  CHECK(Targets({{"layers_to_transform", Json::array()}}) == "q_proj");
  for (const Json& pattern : {Json("layers"), Json::array({"h", "layers"}), Json("model.layers"),
                              Json(""), Json::array()}) {
    CAPTURE(pattern.dump());
    CHECK(Targets({{"layers_to_transform", 2}, {"layers_pattern", pattern}}) ==
          "self_attn.q_proj@2");
  }
  CHECK(Targets({{"layers_pattern", "h"}}) == "q_proj");  // it is not used
  for (const Json& pattern : {Json("h"), Json("layer."), Json("la(y)ers"), Json(1)}) {
    CAPTURE(pattern.dump());
    CHECK(Has(Refused({{"layers_to_transform", 2}, {"layers_pattern", pattern}}),
              "layers_pattern: "));
  }
  for (const Json& layers : {Json("2"), Json(1.5), Json::array({true}), Json::object()}) {
    CAPTURE(layers.dump());
    CHECK(Has(Refused({{"layers_to_transform", layers}}), "layers_to_transform: "));
  }
  CHECK(Has(Refused({{"layers_to_transform", 2}, {"target_modules", ".*q_proj"}}),
            "layers_to_transform: "));
  CHECK(Has(Refused({{"layers_to_transform", 9}}), "no linear has an adapter"));
  // A linear that is listed in full has an adapter whatever the layers are.
  CHECK(Targets({{"target_modules", {"q_proj", "model.layers.0.mlp.up_proj"}},
                 {"layers_to_transform", {3}}}) == "self_attn.q_proj@3,mlp.up_proj@0");
  CHECK(Targets({{"target_modules", {"layers.1.self_attn.q_proj", "2.self_attn.q_proj"}}}) ==
        "self_attn.q_proj@1-2");

  CHECK(
      Targets({{"target_modules", "all-linear"}, {"exclude_modules", {"mlp.up_proj", "q_proj"}}}) ==
      "self_attn.k_proj,self_attn.v_proj,self_attn.o_proj,mlp.gate_proj,mlp.down_proj");
  CHECK(Targets({{"exclude_modules", {"model.layers.1.self_attn.q_proj"}}}) ==
        "self_attn.q_proj@0,self_attn.q_proj@2-3");
  CHECK(Targets({{"exclude_modules", R"(.*layers\.[0-2]\..*)"}}) == "self_attn.q_proj@3");
  CHECK(Targets({{"exclude_modules", "layers"}}) == "q_proj");  // the whole name has to match
  CHECK(Has(Refused({{"exclude_modules", "q_proj(?!x)"}}), ": exclude_modules: the pattern"));
  CHECK(Has(Refused({{"exclude_modules", ".*q_proj"}}), "no linear has an adapter"));

  CHECK(Targets({{"target_modules", R"(.*\.(q|v)_proj)"}}) == "self_attn.q_proj,self_attn.v_proj");
  CHECK(Targets({{"target_modules", R"(model\.layers\.(0|3)\.self_attn\.q_proj$)"}}) ==
        "self_attn.q_proj@0,self_attn.q_proj@3");
  // As unsloth writes it.
  CHECK(
      Targets(
          {{"target_modules",
            R"((?:.*?(?:language|text).*?(?:mlp).*?(?:q_proj|o_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn)\.(?:(?:q_proj|o_proj))))"}}) ==
      "self_attn.q_proj,self_attn.o_proj");
  CHECK(Has(Refused({{"target_modules", "q_proj"}}), "no linear has an adapter"));
  CHECK(Has(Refused({{"target_modules", "layers.*q_proj"}}), "no linear has an adapter"));
}

TEST_CASE("adapter config: ranks and alphas by name, of which the first key that matches counts") {
  CHECK(Targets({{"rank_pattern", {{"q_proj", 2}}}}) == "self_attn.q_proj:2");
  CHECK(Targets({{"rank_pattern", {{"v_proj", 2}}}}) == "q_proj");
  CHECK(Targets({{"alpha_pattern", {{"q_proj", 0.5}}}}) == "self_attn.q_proj:4/0.5");
  CHECK(Targets({{"alpha_pattern", {{"q_proj", 8}}}, {"rank_pattern", {{"q_proj", 4}}}}) ==
        "q_proj");
  CHECK(Targets({{"rank_pattern", {{"model.layers.1.self_attn.q_proj", 2}, {"q_proj", 3}}}}) ==
        "self_attn.q_proj@0:3,self_attn.q_proj@1:2,self_attn.q_proj@2-3:3");
  CHECK(Targets({{"rank_pattern", {{"q_proj", 3}, {"model.layers.1.self_attn.q_proj", 2}}}}) ==
        "self_attn.q_proj:3");
  CHECK(Targets({{"rank_pattern", {{R"(layers\.[01]\..*)", 2}}},
                 {"alpha_pattern", {{R"(.*\.(1|2)\.self_attn\.q_proj)", 1}}}}) ==
        "self_attn.q_proj@0:2,self_attn.q_proj@1:2/1,self_attn.q_proj@2:4/1,self_attn.q_proj@3");
  CHECK(Targets({{"rank_pattern", {{"^model.layers.0.self_attn.q_proj", 2}}}}) ==
        "self_attn.q_proj@0:2,self_attn.q_proj@1-3");
  CHECK(Targets({{"rank_pattern", {{"proj", 2}}}}) == "q_proj");  // a name starts behind a dot
  for (const Json& ranks :
       {Json{{"q_proj", 0}}, Json{{"q_proj", 2.5}}, Json{{"q_proj", "x"}},
        Json{{"q_proj", nullptr}}, Json{{"q_proj", 70000}}, Json::array({2}), Json("q_proj")}) {
    CAPTURE(ranks.dump());
    CHECK(Has(Refused({{"rank_pattern", ranks}}), "rank_pattern: "));
  }
  for (const Json& alphas : {Json{{"q_proj", 0}}, Json{{"q_proj", -1}}, Json{{"q_proj", true}}}) {
    CAPTURE(alphas.dump());
    CHECK(Has(Refused({{"alpha_pattern", alphas}}), "alpha_pattern: "));
  }
  CHECK(Has(Refused({{"rank_pattern", {{"(q_proj", 2}}}}), "rank_pattern: the pattern"));
  // A file of many patterns, of which each is short and large: no memory is spent on them.
  Json many = Json::object();
  for (int i = 0; i < 2000; ++i) many["x" + std::to_string(i) + "a{1000}"] = 2;
  CHECK(Has(Refused({{"rank_pattern", many}}), "rank_pattern: has too many names"));
  // A name for each linear of many layers, as EVA writes them.
  Json eva = Json::object();
  for (int i = 0; i < 1000; ++i) {
    eva["model.layers." + std::to_string(i) + ".self_attn.q_proj"] = 1 + i % 7;
  }
  CHECK(Targets({{"rank_pattern", eva}}) ==
        "self_attn.q_proj@0:1,self_attn.q_proj@1:2,self_attn.q_proj@2:3,self_attn.q_proj@3");
}

TEST_CASE("adapter config: what is written is read as the same adapters") {
  for (const char* targets :
       {"all-linear", "q_proj", "q_proj@1", "q_proj:2,k_proj@0-2:3/5,up_proj@3:4/1",
        "all-linear,q_proj@0:16,q_proj@1:3,down_proj:4/2", "all-linear@2-3,mlp.up_proj@0"}) {
    CAPTURE(targets);
    ModelSpec spec = FourLayers();
    spec.lora_rank = 4;
    spec.lora_alpha = 8;
    spec.lora_targets = targets;
    const ModelSpec again = ReadText(WriteAdapterConfig(spec, "x"));
    CHECK(ReadTargets(again, "here") == ReadTargets(spec, "here"));
  }
  // Names that end alike.
  ModelSpec gpt2 = testing::TinyModel();
  gpt2.lora_rank = 4;
  gpt2.lora_alpha = 8;
  for (const char* targets : {"mlp.c_proj", "c_proj", "mlp.c_proj@1,attn.c_proj", "c_proj:2"}) {
    CAPTURE(targets);
    gpt2.lora_targets = targets;
    const ModelSpec again =
        ReadText(WriteAdapterConfig(gpt2, "x"), AdapterUse::kTrain, BaseModel(gpt2));
    CHECK(ReadTargets(again, "here") == ReadTargets(gpt2, "here"));
  }
  gpt2.lora_targets = "mlp.c_proj@1,attn.c_proj:2/3";
  const Json config = Json::parse(WriteAdapterConfig(gpt2, "x"));
  CHECK(config.at("target_modules") == Json::array({"attn.c_proj", "transformer.h.1.mlp.c_proj"}));
  CHECK(config.at("rank_pattern") == Json{{"attn.c_proj", 2}});
  CHECK(config.at("alpha_pattern") == Json{{"attn.c_proj", 3.0}});
}

bool Matches(const char* pattern, const char* name, bool whole = true) {
  int64_t steps = NamePattern::kMostSteps;
  const NamePattern read(pattern, "");
  return whole ? read.FullyMatches(name, steps) : read.MatchesFront(name, steps);
}

TEST_CASE("name patterns: match as Python's re") {
  struct Case {
    const char *pattern, *name;
    bool full, front;  // re.fullmatch, re.match
  };
  const Case cases[] = {{"", "", true, true},
                        {"", "a", false, true},
                        {"abc", "abc", true, true},
                        {"abc", "abcd", false, true},
                        {"abc", "xabc", false, false},
                        {"a.c", "abc", true, true},
                        {"a\\.c", "abc", false, false},
                        {"a|bc", "bc", true, true},
                        {"|a", "a", true, true},
                        {"a|ab", "ab", true, true},
                        {"(a|ab)(c|bcd)", "abcd", true, true},
                        {"(a|b|cd|)x", "cdx", true, true},
                        {"(a|b|cd|)x", "x", true, true},
                        {"a*", "aaa", true, true},
                        {"a*b", "b", true, true},
                        {"a+", "", false, false},
                        {"(ab)+", "abab", true, true},
                        {"(ab)+c?", "ababc", true, true},
                        {"(a*)*", "aaa", true, true},
                        {"(a*)+b", "aaac", false, false},
                        {"(a|b)*?c", "abac", true, true},
                        {"a{2}", "aa", true, true},
                        {"a{2}", "aaa", false, true},
                        {"a{2,}", "aaaa", true, true},
                        {"a{,2}", "aaa", false, true},
                        {"a{,}", "aaa", true, true},
                        {"a{1,3}b", "aaab", true, true},
                        {"a{1,3}b", "aaaab", false, false},
                        {"a{0}b", "b", true, true},
                        {"(a|b){2,3}c", "abac", true, true},
                        {"(a|b){2,3}c", "ac", false, false},
                        {"a{x", "a{x", true, true},
                        {"a{}", "a{}", true, true},
                        {"{", "{", true, true},
                        {"[abc]+", "cab", true, true},
                        {"[^abc]", "d", true, true},
                        {"[^abc]", "a", false, false},
                        {"[a-c-]", "-", true, true},
                        {"[]a]", "]", true, true},
                        {"[\\d_]+", "1_2", true, true},
                        {"[\\]]", "]", true, true},
                        {"\\d+\\w\\S", "12a.", true, true},
                        {"\\D\\W\\s", "a. ", true, true},
                        {"\\D", "1", false, false},
                        {"^a$", "a", true, true},
                        {"a$b", "ab", false, false},
                        {"(^a|b)c", "bc", true, true},
                        {"x^a", "xa", false, false},
                        {"\\bmodel\\b.*", "model.layers", true, true},
                        {"mo\\bdel", "model", false, false},
                        {"mo\\Bdel", "model", true, true},
                        {"\\Aa\\Z", "a", true, true},
                        {"(?:a)(?P<name>b)", "ab", true, true},
                        {".*layers\\.(1|2[0-3])\\.", "model.layers.23.", true, true},
                        {".*", "a\n", false, true}};
  for (const Case& c : cases) {
    CAPTURE(c.pattern);
    CAPTURE(c.name);
    CHECK(Matches(c.pattern, c.name) == c.full);
    CHECK(Matches(c.pattern, c.name, false) == c.front);
  }
}

TEST_CASE("name patterns: refuse what is no pattern and what would need backtracking") {
  const std::string deep = std::string(200, '(') + "a" + std::string(200, ')');
  const std::string nested = "((((a{100}){100}){100}){100}){100}";
  const std::string empties = "((((){1000}){1000}){1000}){1000}";
  const std::string long_one(5000, 'a');
  for (const std::string& pattern : std::vector<std::string>{
           "(",        ")",         "a)",    "(a",      "[a",    "[",     "[]",     "a\\",
           "*a",       "+",         "?",     "a**",     "a*+",   "a++",   "a?+",    "a*??",
           "a{2}{3}",  "a{2}*",     "^*",    "$+",      "\\b?",  "|*",    "(*)",    "{2}",
           "a{3,2}",   "a{1001}",   "[b-a]", "[\\d-a]", "(?=a)", "(?!a)", "(?<=a)", "(?<!a)",
           "(?i)a",    "(?P=name)", "(?>a)", "(a)\\1",  "\\q",   "\\x41", "[\\n]",  "(?#c)",
           "(?P<name", "\xc3\xa9",  deep,    nested,    empties, long_one}) {
    CAPTURE(pattern.substr(0, 60));
    const std::string said =
        ErrorOf(ExitCode::kUsage, [&] { const NamePattern read(pattern, "file:3: key: "); });
    CHECK(said.starts_with("file:3: key: the pattern "));
  }
  // What runs away elsewhere takes as many steps as the name is long.
  int64_t steps = NamePattern::kMostSteps;
  const std::string name(2000, 'a');
  CHECK_FALSE(NamePattern("(a*)*(a|aa)+b", "").FullyMatches(name, steps));
  CHECK(steps > NamePattern::kMostSteps - 200'000);
  // No more than are left.
  steps = 10;
  NamePattern(".*x", "").FullyMatches(name, steps);
  CHECK(steps < 0);
}

}  // namespace
}  // namespace zeroplan
