// zeroplan data, and generate with the tokenizer of a model's folder.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/text/tokenizer/tokenizer_folder.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

TEST_CASE("data tokenize, train, generate: text in and out with a model's tokenizer") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  const std::string out = work.path("tokens.bin");
  const std::string texts = SourcePath("LICENSE");

  const RunResult made =
      RunZeroplan("data tokenize " + texts + " --tokenizer " + model + " -o " + out);
  CAPTURE(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK(Has(made.out, wording::kTokensOfBitsDocument));
  const RunResult shown =
      RunZeroplan("data show " + out + " --tokenizer " + model + " --count 1000000");
  std::ifstream file(texts);
  const std::string all{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  CHECK((shown.out == "-- document 1, token 0 --\n<|begin_of_text|>" + all + "<|eot_id|>\n"));

  const std::string train = "train --data " + out +
                            " --threads 1 --steps 2 --fresh-weights --model " + model + " --save " +
                            work.path("out");
  const RunResult trained = RunZeroplan(train);
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);

  // The same without a step in between, from tokens that are kept.
  const std::string from_text = "train --data " + texts +
                                " --threads 1 --steps 2 --fresh-weights --model " + model +
                                " --save " + work.path("out3");
  for (const char* said : {"kept in ", ""}) {
    fs::remove_all(work.path("out3"));
    const RunResult run =
        RunZeroplan(from_text, "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + work.path("cache"));
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(Has(run.err, "kept in ") == (*said != '\0'));
    CHECK((ReadWhole(work.path("out3/model.safetensors")) ==
           ReadWhole(work.path("out/model.safetensors"))));
  }

  const RunResult text = RunZeroplan("generate " + work.path("out") +
                                     " --prompt 'Permission is' --tokens 5 --temperature 0");
  CAPTURE(text.err);
  CHECK(text.exit_code == 0);
  CHECK(text.out.starts_with("Permission is"));
  CHECK(Lacks(text.out, wording::kBeginOfText));

  // Tokens of another tokenizer, and another model's tokenizer.
  fs::copy_file(TokenizerFixture("qwen2"), model + "/tokenizer.json",
                fs::copy_options::overwrite_existing);
  const RunResult refused = RunZeroplan(train + "2");
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, wording::kTokensBinMadeWithAnother));
  fs::create_directory(work.path("tiny"));
  for (const char* name : {"config.json", "model.safetensors"}) {
    fs::copy_file(SourcePath(std::string("tests/fixtures/gpt2_tiny/") + name),
                  work.path(std::string("tiny/") + name));
  }
  fs::copy_file(TokenizerFixture("gpt2"), work.path("tiny/tokenizer.json"));
  const RunResult other = RunZeroplan("generate " + work.path("tiny") + " --prompt a");
  CHECK(other.exit_code == 2);
  CHECK(Has(other.err, wording::kItIsAnotherModel));
}

TEST_CASE("data tokenize, show, train: conversations in the model's chat template") {
  const Workspace work;
  const std::string model =
      MakeTokenizerModel(work.path("model"), "qwen2", {.layers = 1, .positions = 32, .vocab = 600});
  std::ofstream(model + "/chat_template.jinja")
      << "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
  const std::string chats = work.path("chats.jsonl"), out = work.path("chats.bin");
  std::ofstream file(chats);
  for (int i = 0; i < 40; ++i) {
    file << R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ")"
         << i << "\"}]}\n";
  }
  file.close();
  const RunResult bytes = RunZeroplan("data tokenize " + chats + " -o " + out);
  CHECK(bytes.exit_code == 2);
  CHECK(Has(bytes.err, wording::kChatsJsonlBytesAreTokens));
  const std::string tokenize = "data tokenize " + chats + " --tokenizer " + model + " -o " + out;
  const RunResult made = RunZeroplan(tokenize);
  CAPTURE(made.err);
  REQUIRE(made.exit_code == 0);
  CHECK(Has(made.out, wording::kCountInTheLossDocuments));
  const RunResult shown = RunZeroplan("data show " + out + " --mask --tokenizer " + model);
  CHECK(Has(shown.out, "-- document 3, token "));
  CHECK(Has(shown.out, wording::kImStartUserHiIm));
  CHECK(Has(shown.out, "[[2<|im_end|>]]\n"));
  const RunResult short_rows = RunZeroplan("train --steps 2 --seq-len 4 --fresh-weights --model " +
                                           model + " --data " + chats);
  CHECK(short_rows.exit_code == 2);
  CHECK(Has(short_rows.err, wording::kEachOfThe));
  CHECK(Has(short_rows.err, wording::kIsCutOffBeforeAnything));
  const RunResult all = RunZeroplan(tokenize + " --train-on all");
  CHECK(all.exit_code == 0);
  CHECK(all.out.find("count in the loss") == std::string::npos);

  const std::string train =
      "train --data " + chats + " --threads 1 --steps 2 --fresh-weights --model " + model;
  const std::string cache = "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + work.path("cache");
  const RunResult trained = RunZeroplan(train, cache);
  CAPTURE(trained.err);
  CHECK(trained.exit_code == 0);
  CHECK(Has(trained.err, wording::kCountInTheLossDocuments2));
  CHECK(Has(RunZeroplan(train + " --train-on all", cache).err, "40 documents, by "));

  // Of --data, beside tokens to validate with, and the other way round.
  const std::string tokens_too = " --train-on all --validation-data ";
  for (const auto& [data, validation] : {std::pair(chats, out), {out, chats}}) {
    const RunResult both = RunZeroplan("train --threads 1 --steps 1 --fresh-weights --model " +
                                           model + " --data " + data + tokens_too + validation,
                                       cache);
    CAPTURE(both.err);
    CHECK(both.exit_code == 0);
  }
  const RunResult none = RunZeroplan("train --threads 1 --steps 1 --fresh-weights --model " +
                                         model + " --data " + out + tokens_too + out,
                                     cache);
  CHECK(none.exit_code == 2);
  CHECK(Has(none.err, wording::kThereAreNoRecordsOr));

  std::ofstream(chats, std::ios::app) << "{\"text\": \"a\"}\n";
  const RunResult refused = RunZeroplan(train, cache);
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, wording::kChatsJsonlMessagesIsMissing));
}

TEST_CASE("data tokenize: what it needs is asked for by name") {
  const Workspace work;
  const std::string tokenize =
      "data tokenize " + SourcePath("LICENSE") + " -o " + work.path("x.bin") + " ";
  struct Case {
    std::string more;
    const char* said;
  };
  for (const Case& c :
       {Case{"--tokenizer " + TokenizerFixture("gpt2"), "--end-of-text"},
        Case{"--tokenizer " + TokenizerFixture("gpt2") + " --end-of-text nobody", "nobody"},
        Case{"--tokenizer " + work.path("none"), "none"},
        Case{"--end-of-text '</s>'", "--tokenizer"}, Case{"--threads 2", "--tokenizer"},
        Case{"--text-field body", "--text-field: files are taken byte by byte"},
        Case{"--train-on all", "--train-on: files are taken byte by byte"},
        Case{"--tokenizer " + TokenizerFixture("gpt2") + " --map text=x",
             "--map, --text-field: there are no records here, "},
        Case{"--tokenizer " + TokenizerFixture("gpt2") + " --train-on some", "answers"}}) {
    CAPTURE(c.more);
    const RunResult run = RunZeroplan(tokenize + c.more);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, c.said));
    CHECK_FALSE(fs::exists(work.path("x.bin")));
  }
}

TEST_CASE("data tokenize: what of records is not trained on is named once a file") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  std::ofstream(model + "/chat_template.jinja")
      << "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}";
  const std::string record =
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b",)"
      R"( "time": 1}], "id": 1, "source": "x", "tools": [{"name": "f"}]})";
  std::ofstream(work.path("a.jsonl")) << record << "\n" << record << "\n";
  std::ofstream(work.path("b.jsonl")) << record << "\n";
  std::ofstream(work.path("c.csv")) << "prompt,completion,n\ncaf\xe9,b,1\n";
  const std::string a = work.path("a.jsonl"), c = work.path("c.csv");
  const RunResult run = RunZeroplan("data tokenize " + a + " " + work.path("b.jsonl") + " " + c +
                                    " --tokenizer " + model + " -o " + work.path("x.bin"));
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  const std::string members = a + " and 1 more: members that are not used: id, source.\n";
  CHECK(Has(run.err, members));
  CHECK(run.err.find(members) == run.err.rfind(members));
  CHECK(
      Has(run.err, "warning: " + a +
                       " and 1 more: the chat template prints nothing of tools, messages[].time."));
  CHECK(Has(run.err, c + ": members that are not used: n.\n"));
  CHECK(Has(run.err, c + ":2: 1 byte is no UTF-8 and counts as U+FFFD."));
}

TEST_CASE("train: what the tokens lack of the data is said of kept ones, too") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  std::ofstream(work.path("a.jsonl"))
      << R"({"text": ")" << std::string(4000, 'a') << "\"}\n{\"text\": 5}\n{\n";
  std::ofstream(work.path("b.txt")) << std::string(4000, 'b') << '\xFF';
  for (const char* kept : {"", "kept"}) {
    CAPTURE(kept);
    const RunResult run =
        RunZeroplan("train --data " + work.path("a.jsonl") +
                        " --skip-bad 2 --threads 1 --steps 1 --fresh-weights --model " + model +
                        " --validation-data " + work.path("b.txt"),
                    "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + work.path("cache"));
    CHECK(run.exit_code == 0);
    CHECK(Has(run.err, wording::kWarningRecordsWereLeftOut));
    CHECK(Has(run.err, wording::kTxtByteIsNoUtf));
    CHECK(Has(run.err, "Tokens: ") == (*kept == '\0'));
  }
}

TEST_CASE("train: what names and headers of files show is refused before text becomes tokens") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  const std::string cache = work.path("cache");
  const std::string train =
      "train --data " + SourcePath("LICENSE") + " --threads 1 --steps 1 --seq-len 32 --model ";
  const auto run = [&](const std::string& more, const std::string& cache_folder) {
    return RunZeroplan(train + more, "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + cache_folder);
  };
  const std::string out = work.path("out"), lora = work.path("lora");
  REQUIRE(run(model + " --fresh-weights --seed 4 --save " + out, work.path("first")).exit_code ==
          0);
  const std::string tuned = out + " --method lora --lora-rank ";
  REQUIRE(run(tuned + "4 --save " + lora, work.path("first")).exit_code == 0);
  const auto copy = [&](const char* name, const std::string& from) {
    fs::create_directory(work.path(name));
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.is_regular_file()) fs::copy(entry.path(), work.path(name));
    }
    return work.path(name);
  };
  const std::string cut = copy("cut", out), damaged = copy("damaged", lora);
  fs::resize_file(cut + "/model.safetensors", 5000);
  fs::resize_file(damaged + "/adapter_model.safetensors", 3000);
  const std::string deeper = MakeTokenizerModel(work.path("deeper"), "llama3",
                                                {.layers = 2, .positions = 64, .vocab = 512});
  std::ofstream(work.path("empty.txt")).close();
  const struct {
    std::string more;
    const char* said;
  } cases[] = {
      {model + " --save " + out, "the folder holds checkpoints of an earlier run"},
      {model + " --validation-data " + work.path("none"), "none: cannot open"},
      {model + " --validation-data " + work.path("empty.txt"), "empty.txt: no text in it"},
      {model + " --map text=x", "--map, --text-field: there are no records here, "},
      {model + " --skip-bad 1", "--skip-bad: there are no records here, "},
      {cut, "is it cut short?"},
      {deeper + " --init-from " + out, "n_layer is 1, but the model to train has 2"},
      {deeper + " --resume --save " + out, "with layers 1, the one to resume has 2"},
      {model + " --resume --seed 5 --save " + out, "was made with seed 4"},
      {tuned + "8 --resume --save " + lora, "adapter rank 4, the one to resume has 8"},
      {out + " --adapter " + damaged, "the file is cut off or damaged"},
  };
  for (const auto& c : cases) {
    CAPTURE(c.more);
    const RunResult refused = run(c.more, cache);
    CAPTURE(refused.err);
    CHECK(refused.exit_code == 2);
    CHECK(Has(refused.err, c.said));
    CHECK_FALSE(fs::exists(cache));
  }
}

TEST_CASE("train: what was understood of records is shown, and kept tokens can be removed") {
  const Workspace work;
  const std::string model = MakeTokenizerModel(work.path("model"));
  std::ofstream(work.path("a.csv")) << "prompt,completion\nSay it,again and again\n";
  std::ofstream(work.path("b.txt")) << std::string(4000, 'b');
  const std::string environment = "ZEROPLAN_NO_DETECT=1 ZEROPLAN_CACHE_DIR=" + work.path("cache");
  const std::string train = "train --data " + work.path("a.csv") + " " + work.path("b.txt") +
                            " --threads 1 --steps 1 --fresh-weights --model " + model;
  for (int i = 0; i < 2; ++i) {
    const RunResult run = RunZeroplan(train, environment);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(Has(run.err, wording::kTheFirstRecordWhatCounts));
    CHECK((run.err.find("Records: prompts and completions") != std::string::npos) == (i == 0));
  }
  const RunResult mixed = RunZeroplan(train + " --data-repeats 5,2", environment);
  CHECK(Has(mixed.err, wording::kNoValidationPartHoldsBack));
  CHECK(Lacks(mixed.err, wording::kTooLittleData));
  CAPTURE(mixed.err);
  CHECK(mixed.exit_code == 0);
  CHECK(Has(RunZeroplan(train + " --data-repeats 5", environment).err,
            "--data-repeats: 5 has 1 numbers, and --data 2 paths"));
  CHECK(Has(RunZeroplan(train + " --packing stream --truncate", environment).err, "--truncate: "));
  CHECK(Has(RunZeroplan("data cache", environment).out, "/tokens: 3 files, "));
  CHECK(Has(RunZeroplan("data cache --clear", environment).out, "/tokens: 0 files, 0 B"));
}

}  // namespace
}  // namespace zeroplan
