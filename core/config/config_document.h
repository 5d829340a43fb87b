// A DeepSpeed config as a document: read and parsed once, carried by a request, shared by copies.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/base/json_source.h"

namespace zeroplan {

// Returns whether a config sets a value at the dotted `key` ("optimizer.params.lr"): the key is
// present, and its value is neither null nor "auto".
bool ConfigSays(const JsonNode& config, std::string_view key);

class ConfigDocument {
 public:
  ConfigDocument() = default;  // no config
  // Messages call the config `name`. Throws Error(kUsage) "NAME:LINE: ..." for text that is no JSON
  // (json_source.h), and "NAME: ..." for the config of another program (foreign_config.h).
  ConfigDocument(std::string_view text, std::string name);
  // The tree of a config, which keeps the lines of the text that it was parsed from.
  ConfigDocument(JsonNode root, std::string name);
  // Reads the file at `path`, or stdin for "-"; messages call it `path`. Also throws what
  // ReadTextFile throws.
  static ConfigDocument FromFile(const std::string& path);

  bool given() const { return state_ != nullptr; }
  // "" without a config.
  const std::string& name() const;
  // The parsed tree; null without a config.
  const JsonNode& root() const;
  // ConfigSays of the root; false without a config.
  bool Says(std::string_view key) const { return ConfigSays(root(), key); }

 private:
  struct State {
    std::string name;
    JsonNode root;
  };
  std::shared_ptr<const State> state_;
};

}  // namespace zeroplan
