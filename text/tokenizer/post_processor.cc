#include "text/tokenizer/post_processor.h"

#include <limits>
#include <map>
#include <utility>

#include "core/base/error.h"

namespace zeroplan {
namespace {

// "ids" of each entry of "special_tokens".
std::map<std::string, std::vector<int32_t>> ReadIds(JsonPart* part) {
  std::map<std::string, std::vector<int32_t>> all;
  const JsonNode* node = part->Raw("special_tokens");
  if (node == nullptr || !node->is_object()) part->Fail("special_tokens", "must be an object");
  for (const auto& [name, value] : node->members) {
    const JsonNode* ids = value.Find("ids");
    if (ids == nullptr || !ids->is_array()) {
      part->Fail("special_tokens", "{} has no list of ids; get the file again", name);
    }
    for (const JsonNode& id : ids->elements) {
      const bool is_number = id.kind == JsonNode::Kind::kScalar && id.scalar.is_number();
      const double number = is_number ? id.scalar.number() : -1;
      if (number < 0 || number >= std::numeric_limits<int32_t>::max() ||
          number != static_cast<double>(static_cast<int32_t>(number))) {
        part->Fail("special_tokens", "{}: {} is no id; get the file again", name, id.Quote());
      }
      all[name].push_back(static_cast<int32_t>(number));
    }
  }
  return all;
}

}  // namespace

PostProcessor PostProcessor::Read(const JsonNode* node, const std::string& file) {
  PostProcessor post_processor;
  if (node != nullptr && !node->is_null()) {
    post_processor.Add(JsonPart(*node, "post_processor", file));
  }
  return post_processor;
}

void PostProcessor::Add(JsonPart part) {
  if (part.type() == "Sequence") {
    for (JsonPart& inner : part.RequiredParts("processors")) Add(std::move(inner));
  } else if (part.type() == "TemplateProcessing") {
    AddTemplate(&part);
  } else if (part.type() == "ByteLevel") {
    // It changes offsets, which nobody asks for.
    part.Bool("add_prefix_space", true);
    part.Bool("trim_offsets", true);
    part.Bool("use_regex", true);
  } else {
    part.FailType("Sequence, TemplateProcessing, ByteLevel");
  }
  part.Done();
}

void PostProcessor::AddTemplate(JsonPart* part) {
  const auto ids = ReadIds(part);
  part->Raw("pair");  // for two texts, which nobody gives
  const JsonNode* single = part->Raw("single");
  if (single == nullptr || !single->is_array()) part->Fail("single", "must be a list");
  std::vector<int32_t> first, second;
  bool seen_text = false;
  for (const JsonNode& piece : single->elements) {
    const JsonNode* token = piece.Find("SpecialToken");
    const JsonNode* text = piece.Find("Sequence");
    const JsonNode* named = token != nullptr ? token : text;
    const JsonNode* id = named != nullptr ? named->Find("id") : nullptr;
    if (id == nullptr || !id->is_string()) {
      part->Fail("single", "an entry is neither a SpecialToken nor a Sequence; get the file again");
    }
    if (token == nullptr) {
      if (seen_text || !(id->scalar == "A")) {
        part->Fail("single", "must have the text (Sequence A) once; get the file again");
      }
      seen_text = true;
      continue;
    }
    const auto at = ids.find(id->scalar.text());
    if (at == ids.end()) {
      part->Fail("single", "{} is not among special_tokens; get the file again", id->Quote());
    }
    std::vector<int32_t>& side = seen_text ? second : first;
    side.insert(side.end(), at->second.begin(), at->second.end());
  }
  if (!seen_text) part->Fail("single", "must have the text (Sequence A) once; get the file again");
  before.insert(before.begin(), first.begin(), first.end());
  behind.insert(behind.end(), second.begin(), second.end());
}

}  // namespace zeroplan
