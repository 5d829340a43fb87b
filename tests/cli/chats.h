// A model's folder with its tokenizer and chat template, and conversations of which some are long.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"

namespace zeroplan {

class Chats : public Workspace {
 public:
  Chats() {
    MakeTokenizerModel(path("model"), "qwen2", {.layers = 1, .positions = 512, .vocab = 8192});
    std::ofstream(path("model/tokenizer_config.json"))
        << R"({"eos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast"})";
    std::ofstream(path("model/chat_template.jinja"))
        << "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
           "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    std::ofstream file(data);
    for (int i = 0; i < 90; ++i) {
      std::string answer;
      for (int k = 0; k <= (i % 15 == 3 ? 40 : i % 7); ++k) answer += "word " + std::to_string(k);
      const nlohmann::json messages = {{{"role", "user"}, {"content", "Hi"}},
                                       {{"role", "assistant"}, {"content", answer}}};
      file << nlohmann::json{{"messages", messages}}.dump() << '\n';
    }
  }
  RunResult Run(const std::string& arguments) const {
    return RunZeroplan(arguments, "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + path("cache"));
  }
  std::string Plan(const std::string& more) const {
    return "plan --quick --model " + model + " --hw dgx-h100 --gpus 1 --stage 0 --micro-batch 2 " +
           "--grad-accum 3 --seq-len 64 --offload-optimizer none --checkpointing none " + more;
  }

  const std::string model = path("model"), data = path("chats.jsonl");
};

}  // namespace zeroplan
