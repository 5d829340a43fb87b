// How documents become sequences of the length that is trained on.
#pragma once

#include <cstdint>
#include <string_view>

namespace zeroplan {

enum class Packing : uint8_t {
  kStream,     // windows of one stream of tokens, over the borders of documents
  kDocuments,  // whole documents, several a sequence, which neither see nor follow each other
  kOff,        // one document a sequence, padded
};

// "stream", "documents", "off": what --packing calls it.
constexpr std::string_view PackingName(Packing packing) {
  switch (packing) {
    case Packing::kStream:
      return "stream";
    case Packing::kDocuments:
      return "documents";
    case Packing::kOff:
      return "off";
  }
  return "";
}

}  // namespace zeroplan
