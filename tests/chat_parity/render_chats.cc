// usage: render_chats FOLDER CONVERSATIONS YYYY-MM-DD
//
// FOLDER: a model's, with tokenizer.json and tokenizer_config.json. CONVERSATIONS: lines of JSON,
// as train reads them ("messages", perhaps "tools", "chat_template_kwargs"). Prints a line of JSON
// for each: text, ids, mask, turns (what stands before each of the assistant's turns, and the
// turn), prompt (the text with what makes the assistant begin), or error. The date is what a
// template prints as today's.
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "text/documents/records.h"
#include "text/tokenizer/tokenizer.h"

namespace zeroplan {
namespace {

nlohmann::json Answer(const ChatTemplate& chat, const Tokenizer& tokenizer,
                      const Conversation& conversation) {
  nlohmann::json answer;
  try {
    const ChatTemplate::Rendered rendered = chat.Render(conversation, false, "here");
    std::vector<uint8_t> marked;
    answer["text"] = rendered.text;
    answer["ids"] = tokenizer.EncodeMarked(rendered.text, rendered.generated, &marked);
    answer["mask"] = marked;
    answer["turns"] = nlohmann::json::array();
    for (const TextSpan& span : rendered.generated) {
      answer["turns"].push_back({rendered.text.substr(0, span.begin),
                                 rendered.text.substr(span.begin, span.end - span.begin)});
    }
  } catch (const Error& error) {
    answer["error"] = error.what();
  }
  try {
    answer["prompt"] = chat.Render(conversation, true, "here").text;
  } catch (const Error&) {
    answer["prompt"] = nullptr;
  }
  return answer;
}

int Run(const std::string& folder, const std::string& file, const char* date) {
  const Tokenizer tokenizer = Tokenizer::FromFile(folder);
  std::optional<ChatTemplate> chat = ChatTemplate::FromFolder(folder, tokenizer);
  if (!chat) ThrowUsage("{}: no chat template", folder);
  int year = 0, month = 0, day = 0;
  if (std::sscanf(date, "%d-%d-%d", &year, &month, &day) != 3) ThrowUsage("{}: no date", date);
  chat->SetDate(year, month, day);
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    const Record record = ReadRecord(line, {RecordFormat::Kind::kChat, {}}, "here");
    const std::string text = Answer(*chat, tokenizer, record.chat).dump() + "\n";
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  try {
    return zeroplan::Run(argv[1], argv[2], argv[3]);
  } catch (const zeroplan::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
