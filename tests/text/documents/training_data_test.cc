
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/documents/tokenize_files.h"
#include "text/files/token_dataset.h"
#include "text/files/token_file.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kVocab = 50257;

// A model's folder with a tokenizer and its eos_token, and a text.
class ModelAndText : public TokenizerFolder {
 public:
  ModelAndText() {
    fs::create_directory(path("model"));
    fs::copy_file(TokenizerFixture("gpt2"), path("model/tokenizer.json"));
    Write("model/tokenizer_config.json", R"({"eos_token": "<|endoftext|>"})");
    Write("text", "one text\n");
  }
  std::vector<std::string> Data() const {
    return DataForModel(text_, path("model"), kVocab, path("cache"), 1);
  }
  const std::vector<std::string>& text() const { return text_; }

 private:
  const std::vector<std::string> text_ = {path("text")};
};

TEST_CASE("training data: text becomes the model's tokens, once") {
  const ModelAndText folder;
  const std::vector<std::string> made = folder.Data();
  REQUIRE(made.size() == 1);
  const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture("gpt2"));
  const std::string head = "-- document 1, token 0 --\n";
  const auto text = [&](const std::vector<std::string>& data) {
    return TokensAsText(tokenizer, data[0], {0, 1000});
  };
  CHECK(text(made) == head + "one text\n<|endoftext|>");
  const auto written = fs::last_write_time(made[0]);
  CHECK(folder.Data() == made);
  CHECK(fs::last_write_time(made[0]) == written);

  folder.Write("text", "another text\n");
  const std::vector<std::string> anew = folder.Data();
  CHECK(anew != made);
  CHECK(text(anew) == head + "another text\n<|endoftext|>");

  fs::resize_file(anew[0], 100);  // a damaged file is made again
  CHECK(folder.Data() == anew);
  CHECK(text(anew) == head + "another text\n<|endoftext|>");
}

TEST_CASE("training data: of several that ask at once one makes the file") {
  const ModelAndText folder;
  folder.Write("text", std::string(300'000, 'a') + " and more");
  std::vector<std::vector<std::string>> all(4);
  std::vector<std::thread> threads;
  for (std::vector<std::string>& data : all) {
    threads.emplace_back([&] { data = folder.Data(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::string>& data : all) CHECK(data == all[0]);
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder.path("cache/tokens"))) {
    files += entry.path().extension() == ".bin" ? 1 : 0;
  }
  CHECK(files == 1);
  CHECK(TokenDataset::Open(all[0]).size() > 1000);
}

TEST_CASE("training data: what is not text for a tokenizer stays, or is refused with a way out") {
  const ModelAndText folder;
  const std::string model = folder.path("model"), cache = folder.path("cache");
  CHECK(DataForModel(folder.text(), model, kByteTokens, cache, 1) == folder.text());
  CHECK(DataForModel(folder.text(), "", kVocab, cache, 1) == folder.text());
  CHECK(DataForModel(folder.text(), folder.path("."), kVocab, cache, 1) == folder.text());
  CHECK_FALSE(fs::exists(cache));
  const std::vector<std::string> tokens = folder.Data();
  CHECK(DataForModel(tokens, model, kVocab, cache, 1) == tokens);

  const auto refused = [&](const std::string& cache_folder) {
    return ErrorOf(ExitCode::kUsage,
                   [&] { DataForModel(folder.text(), model, kVocab, cache_folder, 1); });
  };
  const std::string by_hand =
      "zeroplan data tokenize " + folder.path("text") + " ⟦tokenizer⟧ " + model;
  CHECK(Has(refused(""), "ZEROPLAN_CACHE_DIR"));
  CHECK(Has(refused(""), by_hand + " -o tokens.bin"));
  fs::remove(model + "/tokenizer_config.json");
  CHECK(Has(refused(cache), "eos_token"));
  CHECK(Has(refused(cache), by_hand + " ⟦end_of_text⟧ TOKEN -o tokens.bin"));
  fs::copy_file(TokenizerFixture("smollm2"), model + "/tokenizer.json",
                fs::copy_options::overwrite_existing);
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { DataForModel(tokens, model, kVocab, cache, 1); }),
            "made with another tokenizer"));
}

TEST_CASE("training data: text for published weights needs their tokenizer") {
  const ModelAndText folder;
  const std::string model = folder.path("weights");
  fs::create_directory(model);
  const auto data = [&](int64_t vocab) {
    return DataForModel(folder.text(), model, vocab, folder.path("cache"), 1);
  };
  CHECK(data(kVocab) == folder.text());  // fresh weights
  folder.Write("weights/model.safetensors", "x");
  const auto refused = [&] { return ErrorOf(ExitCode::kUsage, [&] { data(kVocab); }); };
  CHECK(Has(refused(), "no tokenizer.json in that folder: put the one there"));
  CHECK(Has(refused(), "zeroplan data tokenize " + folder.path("text") + " -o tokens.bin"));
  CHECK(data(kByteTokens) == folder.text());
  folder.Write("bytes.bin", "");
  WriteTokenFile(folder.path("bytes.bin"), std::vector{1, 2, 3});
  const std::vector<std::string> tokens = {folder.path("bytes.bin")};
  CHECK(DataForModel(tokens, model, kVocab, folder.path("cache"), 1) == tokens);
  fs::create_directory(model + "/checkpoints");  // of a run that was trained on bytes
  CHECK(data(kVocab) == folder.text());
  folder.Write("weights/vocab.json", "{}");
  CHECK(Has(refused(), "(vocab.json is not read)"));
}

}  // namespace
}  // namespace zeroplan
