
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/files.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/scoped_env.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "text/documents/token_cache.h"
#include "text/documents/token_text.h"
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
    return DataForModel({text_, path("model"), kVocab, path("cache"), 1});
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

TEST_CASE("training data: kept tokens go by the files' content, whatever they are called") {
  const ModelAndText folder;
  const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture("gpt2"));
  const std::vector<std::string> made = folder.Data();
  const auto of = [&](const std::vector<std::string>& names) {
    std::vector<std::string> data;
    for (const std::string& name : names) data.push_back(folder.path(name));
    return DataForModel({data, folder.path("model"), kVocab, folder.path("cache"), 1});
  };
  fs::copy_file(folder.path("text"), folder.path("copy"));
  CHECK(of({"copy"}) == made);
  // Other bytes of the same size and time.
  const fs::file_time_type time = fs::last_write_time(folder.path("text"));
  folder.Write("text", "two text\n");
  fs::last_write_time(folder.path("text"), time);
  const std::vector<std::string> other = of({"text"});
  CHECK(other != made);
  CHECK(Has(TokensAsText(tokenizer, other[0], {0, 100}), "two text"));

  // A file more leaves what was made of the others.
  const std::string large(2'000'000, 'x');
  folder.Write("large", large + " one");
  folder.Write("more", large + " two");
  const std::vector<std::string> before = of({"large", "text"});
  const std::vector<std::string> after = of({"more", "large", "text"});
  REQUIRE(after.size() == 3);
  CHECK(std::vector<std::string>(after.begin() + 1, after.end()) == before);

  // Damage is found, and mended.
  const auto overwrite = [&](uint64_t at) {
    std::fstream file(made[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(at));
    file.put('\x7F');
  };
  folder.Write("text", "one text\n");
  for (const uint64_t at : {uint64_t{1024}, uint64_t{40}, fs::file_size(made[0]) - 1}) {
    overwrite(at);
    CHECK(folder.Data() == made);
    CHECK(Has(TokensAsText(tokenizer, made[0], {0, 100}), "one text\n<|endoftext|>"));
  }
  std::ofstream(made[0], std::ios::trunc).close();
  CHECK(folder.Data() == made);
  CHECK(Has(TokensAsText(tokenizer, made[0], {0, 100}), "one text"));
  // A token file that somebody made and that was damaged is refused.
  overwrite(1030);
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { DataForModel({made, "", kVocab, "", 1}); }),
            "its bytes are not those that were written"));
  overwrite(1025);  // the upper half of the first id
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { TokensAsText(tokenizer, made[0], {0, 100}); }),
            "its bytes are not those that were written"));
}

TEST_CASE("training data: what was not used for longest goes, unless a run reads it") {
  const TokenizerFolder folder;
  fs::create_directory(folder.path("tokens"));
  const auto file = [&](const char* name, int age) {
    const std::string path = folder.path(std::string("tokens/") + name);
    std::ofstream(path) << std::string(1000, 'x');
    const std::array<timespec, 2> times = {timespec{1'000'000'000 - age, 0},
                                           timespec{0, UTIME_OMIT}};
    utimensat(AT_FDCWD, path.c_str(), times.data(), 0);
    return path;
  };
  const std::string old = file("a.bin", 300), middle = file("b.bin", 200),
                    recent = file("c.bin", 100);
  const UniqueFd read(open(old.c_str(), O_RDONLY | O_CLOEXEC));
  REQUIRE(flock(read.get(), LOCK_SH) == 0);
  const std::vector<CachedTokens> all = ListCachedTokens(folder.path(""));
  REQUIRE(all.size() == 3);
  CHECK(all[0].path == old);
  CHECK(all[0].in_use);
  CHECK_FALSE(all[1].in_use);
  CHECK(TrimCachedTokens(folder.path(""), 3000) == 0);
  CHECK(TrimCachedTokens(folder.path(""), 2500) == 1000);
  CHECK(fs::exists(old));
  CHECK_FALSE(fs::exists(middle));
  CHECK(TrimCachedTokens(folder.path(""), 0) == 1000);
  CHECK_FALSE(fs::exists(recent));

  const ScopedEnv limit("ZEROPLAN_CACHE_LIMIT", "2.5GB");
  CHECK(CacheLimit() == 2'500'000'000);
  const ScopedEnv wrong("ZEROPLAN_CACHE_LIMIT", "much");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [] { CacheLimit(); }), "ZEROPLAN_CACHE_LIMIT"));
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
  CHECK(DataForModel({folder.text(), model, kByteTokens, cache, 1}) == folder.text());
  CHECK(DataForModel({folder.text(), "", kVocab, cache, 1}) == folder.text());
  CHECK(DataForModel({folder.text(), folder.path("."), kVocab, cache, 1}) == folder.text());
  CHECK_FALSE(fs::exists(cache));
  const std::vector<std::string> tokens = folder.Data();
  CHECK(DataForModel({tokens, model, kVocab, cache, 1}) == tokens);
  const std::vector<std::string> both = {folder.text()[0], tokens[0]};
  for (const std::string& of : {model, std::string()}) {
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { DataForModel({both, of, kVocab, cache, 1}); }),
              "text is text and " + tokens[0] + " is a file of tokens: one run reads one kind"));
  }

  const auto refused = [&](const std::string& cache_folder) {
    return ErrorOf(ExitCode::kUsage,
                   [&] { DataForModel({folder.text(), model, kVocab, cache_folder, 1}); });
  };
  const std::string by_hand =
      "zeroplan data tokenize " + folder.path("text") + " ⟦tokenizer⟧ " + model;
  CHECK(Has(refused(""), "ZEROPLAN_CACHE_DIR"));
  const std::string below_file = ErrorOf(ExitCode::kRuntime, [&] {
    DataForModel({folder.text(), model, kVocab, folder.path("text"), 1});
  });
  CHECK(Has(below_file, "text/tokens: the folder to keep tokens in cannot be made (Not a dir"));
  CHECK(Has(below_file, "ZEROPLAN_CACHE_DIR names another"));
  CHECK(Has(refused(""), by_hand + " -o tokens.bin"));
  fs::remove(model + "/tokenizer_config.json");
  CHECK(Has(refused(cache), "eos_token"));
  CHECK(Has(refused(cache), by_hand + " ⟦end_of_text⟧ TOKEN -o tokens.bin"));
  fs::copy_file(TokenizerFixture("smollm2"), model + "/tokenizer.json",
                fs::copy_options::overwrite_existing);
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { DataForModel({tokens, model, kVocab, cache, 1}); }),
            "made with another tokenizer"));
}

TEST_CASE("training data: a token that was added to the tokenizer alone names text and way out") {
  const ModelAndText folder;
  const std::vector<std::string> all = folder.Data();
  const auto of = [&](int64_t vocab) {
    return DataForModel({folder.text(), folder.path("model"), vocab, folder.path("cache"), 1});
  };
  const int32_t end = *Tokenizer::FromFile(TokenizerFixture("gpt2")).TokenId("<|endoftext|>");
  CHECK(of(end + 1) == all);
  const std::string refused = ErrorOf(ExitCode::kUsage, [&] { of(end); });
  CHECK(Has(refused, folder.path("text") + ": has <|endoftext|> (token " + std::to_string(end)));
  CHECK(Has(refused, "⟦resize_embeddings⟧"));
}

TEST_CASE("training data: text for published weights needs their tokenizer") {
  const ModelAndText folder;
  const std::string model = folder.path("weights");
  fs::create_directory(model);
  const auto data = [&](int64_t vocab) {
    return DataForModel({folder.text(), model, vocab, folder.path("cache"), 1});
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
  CHECK(DataForModel({tokens, model, kVocab, folder.path("cache"), 1}) == tokens);
  fs::create_directory(model + "/checkpoints");  // of a run that was trained on bytes
  CHECK(data(kVocab) == folder.text());
  folder.Write("weights/vocab.json", "{}");
  CHECK(Has(refused(), "(vocab.json is not read)"));
}

TEST_CASE("training data: files beside the tokenizer and templates decide what is kept") {
  const ModelAndText folder;
  const std::vector<std::string> bare = folder.Data();
  folder.Write("model/special_tokens_map.json", R"({"bos_token": "text"})");
  const std::vector<std::string> added = folder.Data();
  CHECK(added != bare);
  const auto count = [](const std::vector<std::string>& data) {
    return TokenDataset::Open(data).size();
  };
  CHECK(count(added) < count(bare));
  // Templates are of conversations alone.
  folder.Write("chats.jsonl", R"({"tools": [1], "messages": [{"role": "user", "content": "a"},)"
                              R"( {"role": "assistant", "content": "b"}]})");
  folder.Write("model/chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
  const auto chats = [&] {
    return DataForModel(
        {{folder.path("chats.jsonl")}, folder.path("model"), kVocab, folder.path("cache"), 1});
  };
  const std::vector<std::string> plain = chats();
  fs::create_directory(folder.path("model/additional_chat_templates"));
  folder.Write("model/additional_chat_templates/tool_use.jinja",
               "tools: {% for m in messages %}{{ m.content }}{% endfor %}");
  CHECK(chats() != plain);
  CHECK(count(chats()) > count(plain));
  CHECK(folder.Data() == added);
}

}  // namespace
}  // namespace zeroplan
