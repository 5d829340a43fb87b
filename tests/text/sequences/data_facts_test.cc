// What is counted of conversations, against the batches that a run is given of them.
#include "text/sequences/data_facts.h"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tests/quiet_log.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/documents/token_cache.h"
#include "text/sequences/batch_sampler.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// Words without "!", whose id is 0, as that of padding.
std::string Words(std::mt19937& random, uint32_t count) {
  std::string text;
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t k = 0; k < 1 + random() % 6; ++k) text += static_cast<char>('a' + random() % 26);
    text += ' ';
  }
  return text;
}

Json Message(const char* role, std::string content) {
  return {{"role", role}, {"content", std::move(content)}};
}

struct DataCase {
  const char* name;
  const char* file;
  std::function<std::string(std::mt19937&)> make;
};

Json Chat(std::mt19937& random, uint32_t words) {
  return {{"messages",
           {Message("user", Words(random, 1 + random() % 5)),
            Message("assistant", Words(random, words))}}};
}

const std::vector<DataCase> kCases = {
    {"short chats", "chats.jsonl",
     [](std::mt19937& random) {
       std::string text;
       for (int i = 0; i < 150; ++i) text += Chat(random, 1 + random() % 6).dump() + '\n';
       return text;
     }},
    {"a long tail", "chats.jsonl",
     [](std::mt19937& random) {
       std::string text;
       for (int i = 0; i < 150; ++i) {
         text += Chat(random, random() % 10 == 0 ? random() % 200 : random() % 10).dump() + '\n';
       }
       return text;
     }},
    {"tools and system messages", "chats.jsonl",
     [](std::mt19937& random) {
       std::string text;
       for (int i = 0; i < 80; ++i) {
         Json chat = {{"messages",
                       {Message("system", Words(random, 4)), Message("user", Words(random, 3)),
                        Message("assistant", Words(random, 2)), Message("tool", Words(random, 5)),
                        Message("assistant", Words(random, random() % 20))}}};
         if (i % 2 == 0) {
           chat["tools"] = {{{"type", "function"}, {"function", {{"name", Words(random, 1)}}}}};
         }
         text += chat.dump() + '\n';
       }
       return text;
     }},
    {"plain text", "text.txt",
     [](std::mt19937& random) {
       std::string text;
       for (int i = 0; i < 60; ++i) text += Words(random, 12) + '\n';
       return text;
     }},
    {"one longer than a sequence", "chats.jsonl",
     [](std::mt19937& random) {
       std::string text;
       for (int i = 0; i < 30; ++i) text += Chat(random, i == 11 ? 400 : 3).dump() + '\n';
       return text;
     }},
};

constexpr const char* kTemplate =
    "{% if tools %}{{ tools[0].function.name }}\n{% endif %}{% for m in messages %}<|im_start|>"
    "{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// The data as a model's tokens.
class DataOfCase : public TokenizerFolder {
 public:
  explicit DataOfCase(const DataCase& one) {
    std::filesystem::create_directory(path("model"));
    std::filesystem::copy_file(TokenizerFixture("qwen2"), path("model/tokenizer.json"));
    Write("model/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
    Write("model/chat_template.jinja", kTemplate);
    std::mt19937 random(7);
    Write(one.file, one.make(random));
    const QuietLog quiet;
    paths = DataForModel({{path(one.file)}, path("model"), 151'936, path("cache"), 1});
  }
  std::vector<std::string> paths;
};

// What the batches of an epoch, or of all that is held back, hold.
struct Seen {
  uint64_t rows = 0, filled = 0, counted = 0;
};
void Look(const std::vector<int32_t>& inputs, const std::vector<int32_t>& targets, Seen& seen) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    seen.filled += inputs[i] != 0;
    seen.counted += targets[i] != -1;
  }
}

Seen SeenInEpoch(const BatchSampler& sampler) {
  Seen seen;
  const auto length = static_cast<size_t>(sampler.options().seq_len);
  std::vector<int32_t> inputs(length), targets(length);
  for (uint64_t k = 0; k < sampler.train_samples(); ++k) {
    sampler.FillTrain(k, 0, 0, inputs, targets);
    Look(inputs, targets, seen);
    ++seen.rows;
  }
  return seen;
}

TEST_CASE("data facts: rows, padding and what is cut are those of the sampler's batches") {
  for (const DataCase& one : kCases) {
    CAPTURE(one.name);
    const DataOfCase files(one);
    const TokenDataset data = TokenDataset::Open(files.paths);
    std::vector<int32_t> tokens(data.size());
    data.Read(0, tokens);
    REQUIRE(std::count(tokens.begin(), tokens.end(), 0) == 0);
    for (const int64_t length : {32, 256}) {
      for (const bool shuffle : {false, true}) {
        CAPTURE(length);
        CAPTURE(shuffle);
        SamplerOptions options = {.seq_len = length, .shuffle = shuffle};
        options.cut_long = !data.has_mask();
        std::vector<DataFacts> facts;
        for (const Packing packing : {Packing::kStream, Packing::kDocuments, Packing::kOff}) {
          CAPTURE(PackingName(packing));
          options.packing = packing;
          const BatchSampler sampler(data, options);
          const DataFacts& fact = facts.emplace_back(FactsOf(data, sampler));
          const Seen seen = SeenInEpoch(sampler);
          CHECK(fact.epoch.sequences == seen.rows);
          CHECK(fact.epoch.filled == seen.filled);
          CHECK(fact.lengths.tokens() == tokens.size());
          CHECK(fact.lengths.documents() == data.documents());
          CHECK(fact.counted.has_value() == data.has_mask());
          if (packing == Packing::kStream) {
            CHECK(fact.held_back == sampler.validation_samples());
            continue;
          }
          CHECK(fact.trained_documents + fact.held_back + fact.single == data.documents());
          if (shuffle) continue;
          // Each document's last token is no input, nor is what is cut off.
          CHECK(seen.filled + fact.left_out + data.documents() == tokens.size());
          // All that counts are targets, but what is cut off, and first tokens.
          if (fact.left_out == 0 && data.has_mask()) CHECK(seen.counted == *fact.counted);
          CHECK((fact.longer > 0) == (fact.lengths.AtShare(1) > static_cast<uint64_t>(length) + 1));
          if (!options.cut_long) {
            const SeqLenProposal cuts = CutsOf(fact.lengths, true, length);
            CHECK(cuts.cut_documents * static_cast<double>(data.documents()) ==
                  doctest::Approx(static_cast<double>(fact.longer)));
            CHECK(cuts.cut_tokens * static_cast<double>(tokens.size()) ==
                  doctest::Approx(static_cast<double>(fact.left_out)));
          }
        }
        if (shuffle) continue;
        // What packing gains is what the other sampler's batches are.
        const DataFacts &packed = facts[1], &padded = facts[2];
        CHECK(packed.padded->sequences == padded.epoch.sequences);
        CHECK(packed.padded->filled == padded.epoch.filled);
        CHECK(padded.packed->sequences == packed.epoch.sequences);
        CHECK(padded.packed->filled == packed.epoch.filled);
        CHECK(packed.epoch.sequences <= padded.epoch.sequences);
      }
    }
  }
}

}  // namespace
}  // namespace zeroplan
