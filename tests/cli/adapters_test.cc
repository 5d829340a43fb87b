// LoRA at the command line: trained, saved, continued, merged, generated with; and what is refused.
#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "executor/checkpoint/safetensors.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A model of bytes that was trained a little, to put adapters on.
std::string LittleTrained(const Workspace& space) {
  const std::string out = space.path("base");
  const RunResult run = RunZeroplan(space.Train("--save " + out, 20));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  return out;
}

std::string TuneOn(const std::string& base, const std::string& more, int steps = 12) {
  return "train --model " + base + " --data " + SourcePath("CONTRIBUTING.md") +
         " --threads 1 --lr 1e-2 --steps " + std::to_string(steps) + " " + more;
}

TEST_CASE(
    "lora: trains, saves what PEFT reads, resumes to the same bits, and leaves its base alone") {
  const Workspace space;
  const std::string base = LittleTrained(space), out = space.path("lora");
  const std::string weights = ReadWhole(base + "/model.safetensors");
  const std::string kept = "--method lora --lora-rank 4 --lora-targets c_attn,mlp.c_proj ";
  const std::string lora = kept + "--lora-dropout 0.1 ";
  const RunResult run = RunZeroplan(TuneOn(base, lora + "--save " + out));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kLoraRankAlphaDropoutOn));
  CHECK(ReadWhole(base + "/model.safetensors") == weights);
  CHECK_FALSE(fs::exists(out + "/model.safetensors"));
  const Json config = Json::parse(ReadWhole(out + "/adapter_config.json"));
  CHECK(config.at("peft_type") == "LORA");
  CHECK(config.at("r") == 4);
  CHECK(config.at("lora_alpha") == 8);
  CHECK(config.at("lora_dropout") == 0.1);
  CHECK(config.at("fan_in_fan_out") == true);  // GPT-2's Conv1D
  CHECK(config.at("base_model_name_or_path") == base);
  const SafetensorsFile file = SafetensorsFile::Open(out + "/adapter_model.safetensors");
  size_t adapters = 0;
  for (const SafetensorsEntry& entry : file.entries()) {
    CHECK(entry.name.starts_with("base_model.model.transformer.h."));
    adapters += entry.name.ends_with(".lora_A.weight") || entry.name.ends_with(".lora_B.weight");
  }
  CHECK(adapters == file.entries().size());
  CHECK(file.metadata().at("zeroplan.base").size() == 32);

  // Half the steps, then the rest.
  const std::string halves = space.path("halves");
  REQUIRE(RunZeroplan(TuneOn(base, lora + "--save " + halves, 6)).exit_code == 0);
  REQUIRE(RunZeroplan(TuneOn(base, lora + "--resume --save " + halves)).exit_code == 0);
  CHECK(ReadWhole(halves + "/adapter_model.safetensors") ==
        ReadWhole(out + "/adapter_model.safetensors"));
  // Another dropout is another run.
  const RunResult changed = RunZeroplan(TuneOn(base, kept + "--resume --save " + halves, 20));
  CHECK(changed.exit_code == 2);
  CHECK(Has(changed.err, "adapter dropout 0.1"));
  // Over another base they mean nothing.
  const std::string other = space.path("other");
  REQUIRE(RunZeroplan(space.Train("--seed 9 --save " + other, 2)).exit_code == 0);
  const RunResult refused = RunZeroplan(TuneOn(other, lora + "--resume --save " + halves, 20));
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, "base"));

  // Goes on from the adapter, merges, and generates the same either way.
  const std::string more = space.path("more"), merged = space.path("merged");
  const RunResult on = RunZeroplan(TuneOn(base, "--adapter " + out + " --save " + more, 4));
  INFO(on.err);
  REQUIRE(on.exit_code == 0);
  CHECK(Has(on.err, "dropout 0.1"));  // as the adapter says
  CHECK(ReadWhole(more + "/adapter_model.safetensors") !=
        ReadWhole(out + "/adapter_model.safetensors"));
  const RunResult merge = RunZeroplan("merge " + out + " -o " + merged + " --save-dtype fp32");
  INFO(merge.err);
  REQUIRE(merge.exit_code == 0);
  CHECK(Lacks(merge.err, "other weights"));
  const std::string not_its =
      out + "/adapter_model.safetensors: was trained on other weights than those in " + other;
  const RunResult onto =
      RunZeroplan("merge " + out + " --model " + other + " -o " + space.path("onto"));
  CHECK(onto.exit_code == 0);
  CHECK(Has(onto.err, not_its));
  CHECK(Has(RunZeroplan("generate " + other + " --adapter " + out + " --prompt a --tokens 1").err,
            not_its));
  const std::string ask = " --prompt 'The ' --tokens 60 --temperature 1 --seed 3";
  const RunResult beside = RunZeroplan("generate " + base + " --adapter " + out + ask);
  CHECK(beside.exit_code == 0);
  CHECK(RunZeroplan("generate " + merged + ask).out == beside.out);
  CHECK(RunZeroplan("generate " + out + ask).out == beside.out);  // it names its model
  CHECK(RunZeroplan("generate " + base + ask).out != beside.out);
}

TEST_CASE("qlora: trains over NF4, resumes to the same bits, and merges into the base as it is") {
  const Workspace space;
  const std::string base = LittleTrained(space), out = space.path("qlora");
  const std::string weights = ReadWhole(base + "/model.safetensors");
  const std::string qlora = "--method qlora --lora-rank 4 ";
  const RunResult run = RunZeroplan(TuneOn(base, qlora + "--save " + out));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kQloraRankAlphaOnAttn));
  CHECK(ReadWhole(base + "/model.safetensors") == weights);
  const std::string adapter = ReadWhole(out + "/adapter_model.safetensors");
  // Another base below makes other adapters.
  const std::string lora = space.path("lora");
  REQUIRE(RunZeroplan(TuneOn(base, "--method lora --lora-rank 4 --save " + lora)).exit_code == 0);
  CHECK(ReadWhole(lora + "/adapter_model.safetensors") != adapter);
  // Half the steps, then the rest.
  const std::string halves = space.path("halves");
  REQUIRE(RunZeroplan(TuneOn(base, qlora + "--save " + halves, 6)).exit_code == 0);
  const std::string resume = " --resume --save " + halves;
  const RunResult other = RunZeroplan(TuneOn(base, "--method lora --lora-rank 4" + resume));
  CHECK(other.exit_code == 2);
  CHECK(Has(other.err, wording::kBaseInNfTrue));
  REQUIRE(RunZeroplan(TuneOn(base, qlora + resume)).exit_code == 0);
  CHECK(ReadWhole(halves + "/adapter_model.safetensors") == adapter);
  // Shards of it are the same base.
  const auto last_loss = [&](const std::string& cut) {
    const RunResult run = RunZeroplan(TuneOn(base, qlora + "--grad-accum 1 " + cut));
    REQUIRE(run.exit_code == 0);
    return run.err.substr(run.err.find("last loss"));
  };
  CHECK(last_loss("--micro-batch 2 --gpus 1") == last_loss("--micro-batch 1 --gpus 2 --stage 3"));
  // Goes on from what PEFT reads, when it is said again.
  const RunResult on = RunZeroplan(
      TuneOn(base, "--method qlora --adapter " + out + " --save " + space.path("more"), 2));
  INFO(on.err);
  CHECK(on.exit_code == 0);
  CHECK(Has(on.err, "QLoRA: rank 4"));
  const std::string merged = space.path("merged");
  REQUIRE(RunZeroplan("merge " + out + " -o " + merged + " --save-dtype fp32").exit_code == 0);
  const std::string ask = " --prompt 'The ' --tokens 40 --temperature 1 --seed 3";
  CHECK(RunZeroplan("generate " + merged + ask).out == RunZeroplan("generate " + out + ask).out);
}

TEST_CASE("lora: what is refused says why, before work is spent") {
  const Workspace space;
  const std::string base = LittleTrained(space), out = space.path("lora");
  const auto refused = [&](const std::string& line, const char* why) {
    const RunResult run = RunZeroplan(line);
    INFO(line, run.err);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, why));
  };
  refused(TuneOn(base, "--lora-targets q_proj"), "q_proj is no linear of the model's layers");
  refused(TuneOn(base, "--method full --lora-rank 4"), "full has no adapters");
  refused(TuneOn(base, "--lora-rank 0"), "--lora-rank");
  refused(TuneOn(base, "--lora-alpha -1"), "--lora-alpha");
  refused(TuneOn(base, "--lora-dropout 1"), "--lora-dropout: 1 is not allowed");
  refused(TuneOn(base, "--lora-save nothing"), "nothing is no module of the model; they are");
  refused(TuneOn(base, "--lora-save lm_head"), "(the embedding is the head, too)");
  refused(TuneOn(base, "--lora-save wte"), "trained together; save both or none");
  refused("plan --model llama3.1-8b --gpus 1 --method lora --lora-save q_proj",
          "q_proj is part of one matrix here");
  refused(TuneOn(base, "--method lora --freeze '*wte*'"), "--freeze");
  refused(space.Train("--method lora --save " + out), "--init-from");
  refused("merge " + base + " -o " + out, "adapter_config.json");
  refused("plan --model gpt2 --method all --plan-out " + out + ".json", "goes with one method");
  REQUIRE(RunZeroplan(TuneOn(base, "--method lora --save " + out, 2)).exit_code == 0);
  refused("merge " + out + " -o " + out, "one of the two");
  refused("merge " + out + " -o " + space.path("new") + " --max-shard-size 10",
          "--max-shard-size: 10 is not allowed");
  fs::create_directories(space.path("full"));
  std::ofstream(space.path("full/config.json")) << "{}";
  refused("merge " + out + " -o " + space.path("full"), "--out ");
  refused(TuneOn(base, "--adapter " + out + " --lora-rank 2"), "says rank, alpha and targets");
  const auto edit = [&](const char* key, const Json& value) {
    Json config = Json::parse(ReadWhole(out + "/adapter_config.json"));
    config[key] = value;
    std::ofstream(space.path("edited.json")) << config.dump();
    const std::string folder = space.path("edited");
    fs::create_directories(folder);
    fs::copy_file(space.path("edited.json"), folder + "/adapter_config.json",
                  fs::copy_options::overwrite_existing);
    fs::copy_file(out + "/adapter_model.safetensors", folder + "/adapter_model.safetensors",
                  fs::copy_options::overwrite_existing);
    return folder;
  };
  const auto edited = [&](const char* key, const Json& value, const char* why) {
    refused(TuneOn(base, "--adapter " + edit(key, value)), why);
  };
  refused("merge " + edit("base_model_name_or_path", "no/such") + " -o " + space.path("new"),
          "adapter_config.json: base_model_name_or_path: model 'no/such'");
  edited("peft_type", "IA3", "\"LORA\"");
  edited("use_dora", true, "use_dora");
  edited("rank_pattern", Json{{"c_attn", 2}}, "has shape");
  edited("rank_pattern", Json{{"c_(?=attn)", 2}},
         "rank_pattern: the pattern (.*\\.)?(c_(?=attn))$");
  edited("target_modules", "c_.*", "no linear has an adapter");
  edited("target_modules", Json::array({"transformer.h.0.attn.c_attn"}),
         "is no part of the adapters");
  edited("init_lora_weights", "pissa", "init_lora_weights: \"pissa\"");
  edited("init_lora_weights", "mica", "train on in PEFT");
  edited("of_a_later_peft", 1, "of_a_later_peft: 1 is not known");
  for (const char* key : {"alora_invocation_tokens", "layer_replication", "of_a_later_peft"}) {
    CAPTURE(key);
    const std::string folder = edit(key, Json::array({1})), why = std::string(": ") + key + ": ";
    refused("merge " + folder + " -o " + space.path("new"), why.c_str());
    refused("generate " + base + " --adapter " + folder + " --prompt a", why.c_str());
  }
  edited("r", 3, "has shape");
  edited("lora_dropout", 1, "a dropout of 1 is not allowed");
}

TEST_CASE(
    "lora: adapters of some layers, ranks and alphas train, go on, merge and generate alike") {
  const Workspace space;
  const std::string base = LittleTrained(space), out = space.path("uneven");
  const std::string lora = "--lora-rank 4 --lora-targets c_attn@1:2/5,c_proj:3,mlp.c_fc@0 ";
  const RunResult run = RunZeroplan(TuneOn(base, lora + "--save " + out));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kLoraRankAlphaOnAttn));
  const Json config = Json::parse(ReadWhole(out + "/adapter_config.json"));
  CHECK(config.at("target_modules") ==
        Json::array({"transformer.h.1.attn.c_attn", "c_proj", "transformer.h.0.mlp.c_fc"}));
  CHECK(config.at("rank_pattern") ==
        Json{{"attn.c_attn", 2}, {"attn.c_proj", 3}, {"mlp.c_proj", 3}});
  CHECK(config.at("alpha_pattern") == Json{{"attn.c_attn", 5.0}});
  // Half the steps, then the rest.
  const std::string halves = space.path("halves"), merged = space.path("merged");
  REQUIRE(RunZeroplan(TuneOn(base, lora + "--save " + halves, 6)).exit_code == 0);
  REQUIRE(RunZeroplan(TuneOn(base, lora + "--resume --save " + halves)).exit_code == 0);
  const std::string adapter = ReadWhole(out + "/adapter_model.safetensors");
  CHECK(ReadWhole(halves + "/adapter_model.safetensors") == adapter);
  // What it names is trained on, and saved as what it was.
  const std::string more = space.path("more");
  const RunResult on = RunZeroplan(TuneOn(base, "--adapter " + out + " --save " + more, 4));
  INFO(on.err);
  REQUIRE(on.exit_code == 0);
  CHECK(Json::parse(ReadWhole(more + "/adapter_config.json")) == config);
  CHECK(ReadWhole(more + "/adapter_model.safetensors") != adapter);
  CHECK(ReadWhole(more + "/adapter_model.safetensors").size() == adapter.size());
  REQUIRE(RunZeroplan("merge " + out + " -o " + merged + " --save-dtype fp32").exit_code == 0);
  const std::string ask = " --prompt 'The ' --tokens 60 --temperature 1 --seed 3";
  const RunResult beside = RunZeroplan("generate " + base + " --adapter " + out + ask);
  CHECK(beside.exit_code == 0);
  CHECK(RunZeroplan("generate " + merged + ask).out == beside.out);
  CHECK(RunZeroplan("generate " + base + ask).out != beside.out);
  // What PyTorch programs do with such is not known.
  const RunResult elsewhere = RunZeroplan(
      "estimate --model llama3.2-1b --hw h200-141gb-sxm --runtime ddp --lora-targets q_proj@0-3");
  CHECK(elsewhere.exit_code == 2);
  CHECK(Has(elsewhere.err, wording::kAdaptersOfSomeLayersAlone));
}

TEST_CASE("lora: an adapter with values that are no numbers is refused, with file and tensor") {
  const Workspace space;
  const std::string base = LittleTrained(space), out = space.path("lora");
  REQUIRE(RunZeroplan(TuneOn(base, "--method lora --lora-save ln_f --save " + out, 2)).exit_code ==
          0);
  const std::string path = out + "/adapter_model.safetensors", good = ReadWhole(path);
  const SafetensorsFile file = SafetensorsFile::Open(path);
  for (const SafetensorsEntry& entry : {file.entries().front(), file.entries().back()}) {
    for (const uint32_t bits : {0x7fc00000u, 0xff800000u}) {
      CAPTURE(entry.name);
      CAPTURE(bits);
      std::string bad = good;
      REQUIRE(entry.dtype == "F32");
      uint64_t header = 0;
      std::memcpy(&header, good.data(), 8);
      std::memcpy(bad.data() + 8 + header + entry.begin + 4, &bits, 4);
      std::ofstream(path, std::ios::binary) << bad;
      const std::string why = path + ": tensor '" + entry.name + "' has a value of ";
      for (const std::string& line :
           {"merge " + out + " -o " + space.path("merged"),
            "generate " + base + " --adapter " + out + " --prompt a --tokens 1",
            TuneOn(base, "--adapter " + out, 1)}) {
        CAPTURE(line);
        const RunResult run = RunZeroplan(line);
        CHECK(run.exit_code == 2);
        CHECK(Has(run.err, why));
      }
      CHECK_FALSE(fs::exists(space.path("merged/model.safetensors")));
    }
  }
}

TEST_CASE("lora: estimate and plan count adapters alone") {
  const auto json = [](const std::string& line) {
    const RunResult run = RunZeroplan(line);
    INFO(run.err);
    REQUIRE(run.exit_code == 0);
    return Json::parse(run.out);
  };
  const std::string asked = " --model llama3.2-1b --hw h200-141gb-sxm --seq-len 1024 ";
  const auto bytes = [&](const std::string& more) {
    return json("estimate" + asked + "--stage 0 --format json " + more)
        .at("choices")
        .at(0)
        .at("gpu_bytes");
  };
  const Json full = bytes(""), lora = bytes("--lora-rank 8");
  // 11.3M of 1.24B parameters: 2 x bf16 and 12 bytes of states.
  CHECK(lora.at("grads") < full.at("grads").get<double>() / 50);
  CHECK(lora.at("optimizer") < full.at("optimizer").get<double>() / 50);
  CHECK(lora.at("params") < 1.02 * full.at("params").get<double>());
  // Of a quarter of the layers, 4 of 16, a quarter of that.
  const Json some = bytes("--lora-rank 8 --lora-targets all-linear@12-15");
  CHECK(some.at("optimizer").get<double>() ==
        doctest::Approx(lora.at("optimizer").get<double>() / 4).epsilon(0.01));
  // A question without an answer that says nothing of a method gets LoRA's.
  const std::string small = "plan --quick" + asked + "--gpus 1 --gpu-memory 6GB --host-memory 8GB ";
  const RunResult none = RunZeroplan(small);
  CHECK(none.exit_code == 3);
  CHECK(Has(none.err, wording::kLoraFitsLora));
  CHECK(RunZeroplan(small + "--method lora").exit_code == 0);
  CHECK(Lacks(RunZeroplan(small + "--method full").err, "LoRA fits"));
}

}  // namespace
}  // namespace zeroplan
