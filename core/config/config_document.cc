#include "core/config/config_document.h"

#include <utility>

#include "core/config/foreign_config.h"

namespace zeroplan {

bool ConfigSays(const JsonNode& config, std::string_view key) {
  const JsonNode* node = &config;
  while (node != nullptr) {
    const size_t dot = key.find('.');
    node = node->Find(key.substr(0, dot));
    if (dot == std::string_view::npos) break;
    key.remove_prefix(dot + 1);
  }
  return node != nullptr && !node->is_null() && !(node->is_string() && node->scalar == "auto");
}

ConfigDocument::ConfigDocument(std::string_view text, std::string name) {
  RefuseForeignConfig(text, name);
  JsonNode root = ParseJsonText(text, name);
  *this = ConfigDocument(std::move(root), std::move(name));
}

ConfigDocument::ConfigDocument(JsonNode root, std::string name) {
  state_ = std::make_shared<const State>(State{std::move(name), std::move(root)});
}

ConfigDocument ConfigDocument::FromFile(const std::string& path) {
  return ConfigDocument(ReadTextFile(path), path);
}

const std::string& ConfigDocument::name() const {
  static const std::string kNone;
  return given() ? state_->name : kNone;
}

const JsonNode& ConfigDocument::root() const {
  static const JsonNode kNone;
  return given() ? state_->root : kNone;
}

}  // namespace zeroplan
