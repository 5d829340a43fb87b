#include "text/documents/chat_template.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/text/tokenizer/tokenizer_folder.h"

namespace zeroplan {
namespace {

// The forms of published templates, in our words; the published ones run in tests/chat_parity.
constexpr const char* kChatMl =
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe good.<|im_end|>\n{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}";
constexpr const char* kInst =
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must take turns') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}{% endfor %}";

namespace fs = std::filesystem;

const Conversation kTalk = {
    {{"user", "Hi", {}}, {"assistant", " Yo ", {}}, {"user", "Bye", {}}, {"assistant", "", {}}}};
// The same, of which the first exchange is the prompt.
const Conversation kLastTurn = {kTalk.messages, 2};

std::vector<std::string> Parts(const ChatTemplate::Rendered& rendered) {
  std::vector<std::string> parts;
  for (const auto& [begin, end] : rendered.generated) {
    parts.push_back(rendered.text.substr(begin, end - begin));
  }
  return parts;
}

TEST_CASE("chat template: the assistant's content and the token that ends its turn count") {
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen2"));
  const ChatTemplate chat = ChatTemplate::FromText(kChatMl, "f", {}, qwen);
  CHECK(chat.end_of_turn() == "<|im_end|>");
  CHECK(chat.end_of_turn_id() == qwen.TokenId("<|im_end|>"));
  const ChatTemplate::Rendered all = chat.Render(kTalk, false, "here");
  CHECK(all.text ==
        "<|im_start|>system\nBe good.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\n Yo <|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n");
  CHECK(Parts(all) == std::vector<std::string>{" Yo <|im_end|>", "<|im_end|>"});
  CHECK(Parts(chat.Render(kLastTurn, false, "here")) == std::vector<std::string>{"<|im_end|>"});
  const ChatTemplate::Rendered prompt = chat.Render({{kTalk.messages[0]}}, true, "here");
  CHECK(prompt.text.ends_with("Hi<|im_end|>\n<|im_start|>assistant\n"));
  CHECK(prompt.generated.empty());

  const Tokenizer llama = Tokenizer::FromFile(TokenizerFixture("llama2"));
  const ChatTemplate inst =
      ChatTemplate::FromText(kInst, "f", {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, llama);
  const ChatTemplate::Rendered turns = inst.Render(kTalk, false, "here");
  CHECK(turns.text == "<s>[INST] Hi [/INST] Yo </s>[INST] Bye [/INST]  </s>");
  CHECK(Parts(turns) == std::vector<std::string>{" Yo </s>", "  </s>"});
}

TEST_CASE("chat template: several tokens may end a turn") {
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen2"));
  const ChatTemplate chat = ChatTemplate::FromText(
      "{% for m in messages %}{{ m.content }}<|im_end|><|endoftext|>\n{% endfor %}", "f", {}, qwen);
  CHECK(chat.end_of_turn() == "<|im_end|><|endoftext|>");
  CHECK(chat.end_of_turn_id() == qwen.TokenId("<|endoftext|>"));
  CHECK(Parts(chat.Render(kTalk, false, "here")).back() == "<|im_end|><|endoftext|>");
}

TEST_CASE("chat template: generation blocks say what counts") {
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen2"));
  const ChatTemplate chat = ChatTemplate::FromText(
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}<|im_end|>!{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
      "{% endfor %}",
      "f", {}, qwen);
  CHECK(Parts(chat.Render(kTalk, false, "here")) ==
        std::vector<std::string>{" Yo <|im_end|>!", "<|im_end|>!"});
  CHECK(Parts(chat.Render(kLastTurn, false, "here")) == std::vector<std::string>{"<|im_end|>!"});
}

// Prints the thought of the last turn, and an empty one before a plain answer; its generation
// prompt stops before the thought (the form of Qwen3's).
constexpr const char* kThinking =
    "{% for m in messages %}<|im_start|>{{ m.role + '\\n' }}"
    "{% if m.role == 'assistant' and loop.last %}"
    "{{ '<think>\\n' + (m.reasoning_content or '') + '\\n</think>\\n\\n' }}{% endif %}"
    "{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ '\\n<tool_call>\\n' + call.function | tojson + '\\n</tool_call>' }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}";

// What is learned, joined by "|".
std::string Learned(const ChatTemplate& chat, const Conversation& conversation) {
  return fmt::format("{}", fmt::join(Parts(chat.Render(conversation, false, "here")), "|"));
}

TEST_CASE("chat template: all of a turn counts that stands behind the generation prompt") {
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen3"));
  const ChatTemplate chat = ChatTemplate::FromText(kThinking, "f", {}, qwen);
  const auto thought = [](const char* name) {
    return Conversation{{{"user", "2+2", {}},
                         {"assistant", "4", {{name, jinja::Value::Of("add")}}},
                         {"user", "3+3", {}},
                         {"assistant", "6", {{name, jinja::Value::Of("add")}}}}};
  };
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    CAPTURE(name);
    CHECK(Learned(chat, thought(name)) == "4<|im_end|>|<think>\nadd\n</think>\n\n6<|im_end|>");
  }
  Conversation plain = {{{"user", "2+2", {}}, {"assistant", "4", {}}}};
  CHECK(Learned(chat, plain) == "<think>\n\n</think>\n\n4<|im_end|>");
  // Where the prompt has the empty thought, the answer is what is to be said.
  plain.variables.push_back({"enable_thinking", false});
  CHECK(Learned(chat, plain) == "4<|im_end|>");
  // A prompt that begins a thought: that is not the model's to say.
  const ChatTemplate opens = ChatTemplate::FromText(
      "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}{% else %}"
      "<|im_end|>{% if loop.last %}{{ '<think>\\n' + (m.thinking or '') + '\\n</think>' }}{% endif "
      "%}"
      "{{ m.content }}<|endoftext|>{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_end|><think>\\n' }}{% endif %}",
      "f", {}, qwen);
  CHECK(Learned(opens, thought("thinking")) == "4<|endoftext|>|add\n</think>6<|endoftext|>");
}

TEST_CASE("chat template: calls of tools count, and their results do not") {
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen3"));
  const ChatTemplate chat = ChatTemplate::FromText(kThinking, "f", {}, qwen);
  const jinja::Value call =
      jinja::Dict{{"function", jinja::Dict{{"name", jinja::Value::Of("f")},
                                           {"arguments", jinja::Dict{{"x", int64_t{1}}}}}}};
  const Conversation talk = {{{"user", "go", {}},
                              {"assistant", "", {{"tool_calls", jinja::List{call}}}},
                              {"tool", "7", {}},
                              {"assistant", "it is 7", {}}}};
  CHECK(Learned(chat, talk) ==
        "\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "
        "1}}\n</tool_call><|im_end|>|<think>\n\n</think>\n\nit is 7<|im_end|>");
  // The name of what is called, in the header of what it answers, is not said again (gpt-oss).
  const ChatTemplate named = ChatTemplate::FromText(
      "{% set ns = namespace(name='') %}{% for m in messages %}<|im_start|>"
      "{% if m.tool_calls %}{% set ns.name = m.tool_calls[0].function.name %}"
      "{{ 'assistant to=' + ns.name + '\\n' + m.tool_calls[0].function.arguments | tojson }}"
      "{% elif m.role == 'tool' %}{{ ns.name + ' to=assistant\\n' + m.content }}"
      "{% else %}{{ m.role + '\\n' + m.content }}{% endif %}<|im_end|>{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}",
      "f", {}, qwen);
  CHECK(Learned(named, talk) == " to=f\n{\"x\": 1}<|im_end|>|\nit is 7<|im_end|>");
}

TEST_CASE("chat template: each turn ends with its own token") {
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen3"));
  const Conversation talk = {
      {{"user", "a", {}}, {"assistant", "b", {}}, {"user", "c", {}}, {"assistant", "d", {}}}};
  const auto learned = [&](const char* text, const std::vector<std::string>& stop = {}) {
    return Learned(ChatTemplate::FromText(text, "f", {}, qwen, stop), talk);
  };
  // The last turn is left open (the form of Qwen1.5's).
  const char* open =
      "{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}"
      "{% if not loop.last or add_generation_prompt %}{{ '<|im_end|>\\n' }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
  CHECK(learned(open) == "b<|im_end|>|d");
  CHECK(ChatTemplate::FromText(open, "f", {}, qwen).end_of_turn() == "<|im_end|>");
  // The last turn ends otherwise than those before it (gpt-oss).
  CHECK(learned("{% for m in messages %}<|im_start|>{{ m.role + '\\n' + m.content }}"
                "{{ '<|endoftext|>' if loop.last else '<|im_end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}") ==
        "b<|im_end|>|d<|endoftext|>");
  // The next turn's header is what the model stops at (GLM).
  const char* headers =
      "{% for m in messages %}{{ '<|im_start|>' if m.role == 'user' else '<|im_end|>' }}"
      "{{ '\\n' + m.content }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_end|>\\n' }}"
      "{% endif %}";
  CHECK(learned(headers, {"<|im_start|>"}) == "b<|im_start|>|d");
  // The header of the next turn is always printed.
  CHECK(learned("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + "
                "'<|im_end|>\\n' }}{% endfor %}{{ '<|im_start|>assistant\\n' }}") ==
        "b<|im_end|>|d<|im_end|>");
  // No generation prompt, and words for headers.
  CHECK(learned("{% for m in messages %}{{ m.role + ': ' + m.content + '<|im_end|>\\n' }}"
                "{% endfor %}") == "b<|im_end|>|d<|im_end|>");
}

TEST_CASE("chat template: a message may say that it is not to be learned") {
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen2"));
  Conversation talk = kTalk;
  talk.messages[1].counts = false;
  CHECK(Learned(ChatTemplate::FromText(kChatMl, "f", {}, qwen), talk) == "<|im_end|>");
  const ChatTemplate blocks = ChatTemplate::FromText(
      "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor "
      "%}",
      "f", {}, qwen);
  CHECK(Learned(blocks, talk) == "<|im_end|>");
}

TEST_CASE("chat template: refusals and unknown templates are errors with place and way out") {
  const Tokenizer llama = Tokenizer::FromFile(TokenizerFixture("llama2"));
  const ChatTemplate inst = ChatTemplate::FromText(
      kInst, "model/f", {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, llama);
  const Conversation twice = {{{"user", "a", {}}, {"user", "b", {}}}};
  const std::string refused =
      ErrorOf(ExitCode::kUsage, [&] { inst.Render(twice, false, "chats.jsonl:7"); });
  CHECK(refused.starts_with("chats.jsonl:7: "));
  CHECK(Has(refused, "model/f"));
  CHECK(Has(refused, "roles must take turns"));
  const std::string unknown = ErrorOf(ExitCode::kUsage, [&] {
    ChatTemplate::FromText("a\n{% import 'x' %}", "model/f", {}, llama);
  });
  CHECK(Has(unknown, "model/f: chat template, line 2: the tag import"));
  CHECK(Has(unknown, "\"text\" field"));
}

TEST_CASE("chat template: found in a model's folder; the file goes before the config") {
  const TokenizerFolder folder;
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen2"));
  CHECK_FALSE(ChatTemplate::FromFolder(folder.path(""), qwen).has_value());
  folder.Write("tokenizer_config.json", R"({"eos_token": {"content": "E"}, "bos_token": null})");
  CHECK_FALSE(ChatTemplate::FromFolder(folder.path(""), qwen).has_value());
  folder.Write(
      "tokenizer_config.json",
      R"({"eos_token": {"content": "E"}, "chat_template": "a{{ eos_token }}{{ bos_token }}"})");
  const auto text = [&] {
    return ChatTemplate::FromFolder(folder.path(""), qwen)->Render(kTalk, false, "here").text;
  };
  CHECK(text() == "aE");
  const Sha256Digest digest = ChatTemplate::FromFolder(folder.path(""), qwen)->digest();
  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tools", "template": "t"},
                                     {"name": "default", "template": "d"}]})");
  CHECK(text() == "d");
  CHECK((digest != ChatTemplate::FromFolder(folder.path(""), qwen)->digest()));
  folder.Write("chat_template.jinja", "j\n");
  CHECK(text() == "j");
  folder.Write("tokenizer_config.json", R"({"chat_template": 5})");
  folder.Write("chat_template.jinja", "{{ strftime_now('%d %b %Y') }}");
  CHECK(text() == "26 Jul 2024");
  ChatTemplate dated = *ChatTemplate::FromFolder(folder.path(""), qwen);
  CHECK(dated.prints_date());
  dated.SetDate(2025, 3, 9);
  CHECK(dated.Render(kTalk, false, "here").text == "09 Mar 2025");
}

TEST_CASE("chat template: conversations with tools have a template of their own") {
  const TokenizerFolder folder;
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen2"));
  Conversation with_tools = kTalk;
  with_tools.tools = jinja::List{jinja::Value::Of("t")};
  const auto chat = [&] { return *ChatTemplate::FromFolder(folder.path(""), qwen); };
  const auto text = [&](const Conversation& talk) {
    return chat().Render(talk, false, "here").text;
  };
  folder.Write("tokenizer_config.json",
               R"({"chat_template": [{"name": "default", "template": "d{{ tools is none }}"},
                                     {"name": "rag", "template": "{% no %}"},
                                     {"name": "tool_use", "template": "t{{ tools is none }}"}]})");
  CHECK(text(with_tools) == "tFalse");
  CHECK(text(kTalk) == "dTrue");
  // No tools are asked for, which an empty list does.
  Conversation none = kTalk;
  none.tools = jinja::List{};
  CHECK(text(none) == "tFalse");
  const Sha256Digest digest = chat().digest();
  // Files go before the config, all of them.
  folder.Write("chat_template.jinja", "file{{ tools is none }}");
  CHECK(text(with_tools) == "fileFalse");
  fs::create_directory(folder.path("additional_chat_templates"));
  folder.Write("additional_chat_templates/tool_use.jinja", "tools{{ strftime_now('%Y') }}");
  CHECK(text(with_tools) == "tools2024");
  CHECK(text(kTalk) == "fileTrue");
  CHECK((digest != chat().digest()));
  CHECK(chat().prints_date());
  ChatTemplate dated = chat();
  dated.SetDate(2025, 3, 9);
  CHECK(dated.Render(with_tools, false, "here").text == "tools2025");
  // One that cannot be read is an error where it is needed.
  folder.Write("additional_chat_templates/tool_use.jinja", "{% import 'x' %}");
  CHECK(text(kTalk) == "fileTrue");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { text(with_tools); }),
            "tool_use.jinja: chat template, line 1: the tag import"));
  fs::remove(folder.path("chat_template.jinja"));
  folder.Write("additional_chat_templates/tool_use.jinja", "tools");
  CHECK(text(with_tools) == "tools");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { text(kTalk); }), "add one named default"));
  fs::rename(folder.path("additional_chat_templates/tool_use.jinja"),
             folder.path("additional_chat_templates/rag.jinja"));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { chat(); }), "rag.jinja: there is neither a "));
}

TEST_CASE("chat template: texts of tokens are those that all files beside it name") {
  const TokenizerFolder folder;
  const Tokenizer qwen = Tokenizer::FromFile(TokenizerFixture("qwen2"));
  folder.Write("chat_template.jinja", "{{ eos_token }}{{ image_token }}{{ bos_token }}");
  folder.Write("tokenizer_config.json", R"({"image_token": "<image>", "eos_token": "E"})");
  folder.Write("special_tokens_map.json", R"({"eos_token": {"content": "map"}})");
  CHECK(ChatTemplate::FromFolder(folder.path(""), qwen)->Render(kTalk, false, "here").text ==
        "map<image>");
}

TEST_CASE("tokenizer: tokens that have something of a span are marked") {
  const auto marked = [](const char* name, const std::string& text, TextSpan span) {
    const Tokenizer tokenizer = Tokenizer::FromFile(TokenizerFixture(name));
    std::vector<uint8_t> marks;
    const std::vector<int32_t> ids = tokenizer.EncodeMarked(text, {&span, 1}, &marks);
    CHECK(ids == tokenizer.Encode(text, false));
    REQUIRE(ids.size() == marks.size());
    std::vector<int32_t> counted;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (marks[i] != 0) counted.push_back(ids[i]);
    }
    return tokenizer.Decode(counted, false);
  };
  const std::string text = "<s>[INST] Hello there [/INST] Good 中文 day\n</s>";
  const size_t begin = text.find("Good");
  for (const char* name : {"gpt2", "llama2", "llama3", "qwen2", "mistral_v03"}) {
    CAPTURE(name);
    // The token of "Good" has the space before it, or is beside it.
    const std::string whole = marked(name, text, {begin, text.find("</s>")});
    CHECK((whole == " Good 中文 day\n" || whole == "Good 中文 day\n"));
    CHECK(marked(name, text, {begin, begin}).empty());
    const std::string part = marked(name, text, {text.find("中"), text.find("中") + 3});
    CHECK(Has(part, "中"));
    CHECK(part.find("day") == std::string::npos);
  }
  CHECK(marked("llama2", text, {text.find("</s>"), text.size()}) == "</s>");
  // What is put together across a border: one token, which has something of both.
  CHECK(marked("qwen2", "e\xCC\x81x", {1, 3}) == "é");
}

}  // namespace
}  // namespace zeroplan
