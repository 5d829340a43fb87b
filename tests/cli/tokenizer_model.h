// A folder with a small model's config.json and a tokenizer of tests/fixtures/tokenizers.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/text/tokenizer/tokenizer_folder.h"
#include "tests/tiny_config.h"

namespace zeroplan {

inline constexpr testing::TinyConfig kTokenizerModel = {.layers = 1, .positions = 64, .vocab = 512};

// Makes `folder`, which it returns.
inline std::string MakeTokenizerModel(const std::string& folder,
                                      const std::string& tokenizer = "llama3",
                                      const testing::TinyConfig& config = kTokenizerModel) {
  std::filesystem::create_directory(folder);
  testing::WriteGpt2Config(folder + "/config.json", config);
  std::filesystem::copy_file(TokenizerFixture(tokenizer), folder + "/tokenizer.json");
  if (tokenizer == "llama3") {
    std::ofstream(folder + "/tokenizer_config.json")
        << R"({"eos_token": "<|eot_id|>", "tokenizer_class": "PreTrainedTokenizerFast"})";
  }
  return folder;
}

}  // namespace zeroplan
