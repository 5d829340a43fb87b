// Configs of other programs, given in place of DeepSpeed's: one line that names their program and
// the options for their values.
#include "core/config/foreign_config.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/config/config_document.h"
#include "tests/error_of.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

std::string SaidOf(const std::string& text, const std::string& name) {
  return ErrorOf(ExitCode::kUsage, [&] { ConfigDocument(text, name); });
}

struct Case {
  const char* program;
  const char* text;
  std::vector<const char*> said;
  const char* name = "c.yaml";
};

const Case kCases[] = {
    {"accelerate",
     "compute_environment: LOCAL_MACHINE\n"
     "deepspeed_config:\n"
     "  gradient_accumulation_steps: 4\n"
     "  offload_optimizer_device: none\n"
     "  zero3_save_16bit_model: true\n"
     "  zero_stage: 3\n"
     "distributed_type: DEEPSPEED\nmixed_precision: bf16\nnum_processes: 8\n",
     {"⟦runtime⟧ deepspeed ⟦gpus⟧ 8 ⟦dtype⟧ bf16 ⟦stage⟧ 3 ⟦offload_optimizer⟧ none ⟦grad_accum⟧ "
      "4"}},
    {"accelerate",
     "distributed_type: DEEPSPEED\n"
     "deepspeed_config:\n"
     "    deepspeed_config_file: ds/zero3.json\n"
     "    zero3_init_flag: false\n"
     "num_processes: 16  # two nodes\nmixed_precision: 'no'\n",
     {"give the DeepSpeed config that it names, ds/zero3.json, and its values as options: ⟦gpus⟧ "
      "16"}},
    {"accelerate",
     R"({"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU",
         "mixed_precision": "fp16", "num_processes": 2})",
     {"⟦gpus⟧ 2 ⟦dtype⟧ fp16"},
     "default_config.json"},
    {"accelerate",
     "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
     "  fsdp_offload_params: true\n  fsdp_sharding_strategy: FULL_SHARD\n"
     "mixed_precision: 'no'\nnum_machines: 1\nnum_processes: 2\n",
     {"options: ⟦gpus⟧ 2 ⟦model⟧ MODEL"}},
    {"axolotl",
     "base_model: NousResearch/Meta-Llama-3.1-8B\nsequence_len: 8192\nsample_packing: true\n"
     "gradient_accumulation_steps: 8\nmicro_batch_size: 1\noptimizer: paged_adamw_8bit\n"
     "bf16: auto\ndeepspeed: deepspeed_configs/zero2.json\n",
     {"deepspeed_configs/zero2.json",
      "⟦model⟧ NousResearch/Meta-Llama-3.1-8B ⟦seq_len⟧ 8192 ⟦micro_batch⟧ 1 ⟦grad_accum⟧ 8"}},
    {"axolotl",
     "base_model: Qwen/Qwen2.5-7B\nadapter: qlora\nlora_r: 32\n"
     "datasets:\n  - path: tatsu-lab/alpaca\n    type: alpaca\n"
     "sequence_len: 2048\nmicro_batch_size: 2\n",
     {"⟦model⟧ Qwen/Qwen2.5-7B ⟦method⟧ qlora ⟦lora_rank⟧ 32 ⟦seq_len⟧ 2048 ⟦micro_batch⟧ 2"}},
    {"axolotl",
     "# full\nbase_model: 'HuggingFaceTB/SmolLM2-135M'\nload_in_8bit: false\n"
     "fsdp:\n  - full_shard\nfsdp_config:\n  fsdp_offload_params: true\nsequence_len: 512\n",
     {"⟦seq_len⟧ 512"}},
    {"LLaMA-Factory",
     "### model\nmodel_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct\n\n### method\nstage: "
     "sft\n"
     "do_train: true\nfinetuning_type: lora\nlora_rank: 8\n"
     "deepspeed: examples/deepspeed/ds_z3_config.json\ncutoff_len: 1024\n"
     "per_device_train_batch_size: 1\ngradient_accumulation_steps: 2\nlearning_rate: 1.0e-4\n"
     "bf16: true\n",
     {"examples/deepspeed/ds_z3_config.json", "⟦method⟧ lora ⟦lora_rank⟧ 8 ⟦seq_len⟧ 1024"}},
    {"LLaMA-Factory",
     "model_name_or_path: Qwen/Qwen2-1.5B\nstage: pt\nfinetuning_type: full\ncutoff_len: 4096\n",
     {"⟦model⟧ Qwen/Qwen2-1.5B ⟦method⟧ full ⟦seq_len⟧ 4096"}},
    {"LLaMA-Factory",
     R"({"model_name_or_path": "/models/my model", "stage": "dpo", "finetuning_type": "lora",
         "per_device_train_batch_size": 4})",
     {"⟦method⟧ lora ⟦micro_batch⟧ 4"},
     "run.json"},
    {"ms-swift",
     "model: Qwen/Qwen2.5-7B-Instruct\ntrain_type: lora\ntorch_dtype: bfloat16\nmax_length: 2048\n"
     "per_device_train_batch_size: 1\ndeepspeed: zero2\n",
     {"⟦model⟧ Qwen/Qwen2.5-7B-Instruct ⟦method⟧ lora ⟦seq_len⟧ 2048 ⟦micro_batch⟧ 1"}},
    {"ms-swift",
     "model: Qwen/Qwen3-8B\ntuner_type: full\nmax_length: 8192\ngradient_accumulation_steps: 4\n",
     {"⟦method⟧ full ⟦seq_len⟧ 8192 ⟦grad_accum⟧ 4"}},
    {"ms-swift",
     "rlhf_type: dpo\nmodel: Qwen/Qwen2.5-3B\ndeepspeed: ds/z3.json\n",
     {"ds/z3.json, and its values as options: ⟦model⟧ Qwen/Qwen2.5-3B"}},
    {"torchtune",
     "output_dir: /tmp/out\ntokenizer:\n  _component_: torchtune.models.llama3.llama3_tokenizer\n"
     "  path: /tmp/tokenizer.model\n  max_seq_len: 4096\nmodel:\n"
     "  _component_: torchtune.models.llama3_1.llama3_1_8b\nbatch_size: 2\n"
     "gradient_accumulation_steps: 8\noptimizer:\n  _component_: torch.optim.AdamW\n  lr: 2e-5\n"
     "dtype: bf16\n",
     {"⟦seq_len⟧ 4096 ⟦micro_batch⟧ 2 ⟦grad_accum⟧ 8 ⟦dtype⟧ bf16"}},
    {"torchtune",
     "model:\n    _component_: torchtune.models.qwen2_5.lora_qwen2_5_7b_base\n"
     "    lora_rank: 8\ntokenizer:\n    path: x\n    max_seq_len: null\nbatch_size: 4\n",
     {"⟦micro_batch⟧ 4"}},
    {"torchtune",
     "checkpointer:\n  _component_: torchtune.training.FullModelHFCheckpointer\n",
     {"⟦model⟧ MODEL"}},
    {"torchtitan",
     "[job]\ndump_folder = \"./outputs\"\n[model]\nname = \"llama3\"\nflavor = "
     "\"8B\"\n[optimizer]\n"
     "name = \"AdamW\"\nlr = 3e-4\n[training]\nlocal_batch_size = 1\nseq_len = 8192\nsteps = 1000\n"
     "[parallelism]\ndata_parallel_shard_degree = -1\n",
     {"⟦runtime⟧ fsdp2 ⟦seq_len⟧ 8192 ⟦micro_batch⟧ 1"},
     "t.toml"},
    {"torchtitan",
     "[training]\nlocal_batch_size = 4  # per GPU\nseq_len=2048\n",
     {"⟦runtime⟧ fsdp2 ⟦seq_len⟧ 2048 ⟦micro_batch⟧ 4"},
     "t.toml"},
    {"torchtitan",
     "# my run\n[model]\n  flavor = '70B'\n[parallelism]\n  tensor_parallel_degree = 8\n",
     {"options: ⟦runtime⟧ fsdp2"},
     "-"},
    {"TRL's or transformers' Trainer",
     "model_name_or_path: Qwen/Qwen2.5-1.5B\ndataset_name: trl-lib/Capybara\nmax_length: 4096\n"
     "per_device_train_batch_size: 2\ngradient_accumulation_steps: 16\nuse_peft: false\n",
     {"⟦model⟧ Qwen/Qwen2.5-1.5B ⟦seq_len⟧ 4096 ⟦micro_batch⟧ 2 ⟦grad_accum⟧ 16"}},
    {"TRL's or transformers' Trainer",
     R"({"model_name_or_path": "gpt2", "output_dir": "o", "deepspeed": {"train_batch_size": "auto"},
         "per_device_train_batch_size": 8})",
     {"⟦model⟧ gpt2 ⟦micro_batch⟧ 8"},
     "args.json"},
    {"TRL's or transformers' Trainer",
     "per_device_train_batch_size: 1\ndeepspeed: 'conf/ds zero3.json'\nlora_r: 64\n",
     {"⟦lora_rank⟧ 64 ⟦micro_batch⟧ 1"}},
};

TEST_CASE("a config of another program gets one line: whose it is, and what to give instead") {
  for (const Case& c : kCases) {
    CAPTURE(c.program);
    CAPTURE(c.text);
    const std::string said = SaidOf(c.text, c.name);
    CAPTURE(said);
    CHECK(std::count(said.begin(), said.end(), '\n') == 0);
    CHECK(said.starts_with(std::string(c.name) + ": is a config of " + c.program +
                           ", which zeroplan does not read yet; "));
    for (const char* part : c.said) CHECK(Has(said, part));
  }
}

TEST_CASE("YAML and TOML of no known program say what a DeepSpeed config is") {
  for (const char* name : {"a.yaml", "b.yml"}) {
    CHECK(
        Has(SaidOf("trainer:\n  devices: 8\n", name), ": is YAML, and a DeepSpeed config is JSON"));
  }
  CHECK(Has(SaidOf("[a]\nb = 1\n", "c.toml"), "c.toml: is TOML"));
  CHECK(Has(SaidOf("", "empty.yaml"), "is YAML"));
}

TEST_CASE("DeepSpeed's own configs stay what they are, whatever else they have") {
  for (const char* text :
       {R"({"zero_optimization": {"stage": 3}, "distributed_type": "DEEPSPEED"})",
        R"({"train_micro_batch_size_per_gpu": 1, "model_name_or_path": "gpt2"})",
        R"({"bf16": {"enabled": true}, "base_model": "x"})",
        "zero_optimization: {\"stage\": 2}\nfinetuning_type: lora\n",
        "// mine\n{\"train_batch_size\": 8, // all\n \"cutoff_len\": 3}",
        R"({"optimizer": {"type": "AdamW"}})", R"({"gradient_clipping": 1.0})", "{}",
        R"({"zero_stage": 3})", R"({"_zeroplan": {"runtime": "fsdp2"}, "base_model": "x"})"}) {
    CAPTURE(text);
    CHECK_NOTHROW(RefuseForeignConfig(text, "ds.json"));
  }
  // In a file that is called YAML, too.
  CHECK_NOTHROW(RefuseForeignConfig("zero_optimization: {\"stage\": 2}\n", "ds.yaml"));
  // A text that no parser takes is its parser's to refuse.
  CHECK(Has(SaidOf("{\"zero_optimization\": {\"stage\": 2}", "ds.json"), "ds.json:1"));
}

}  // namespace
}  // namespace zeroplan
